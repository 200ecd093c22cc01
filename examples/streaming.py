"""Learn from a stream: rows that are never in memory together, and batches as they arrive.

Run it with ``python examples/streaming.py``.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

from accelerando import NeuralNetRegressor
from accelerando.batch_size import GeoDamp

WEIGHTS = np.array([1.0, -2.0, 0.5], dtype="float32")


class Readings(IterableDataset):
    """Readings of a sensor, one after another, made when they are needed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        rng = np.random.default_rng(0)
        for _ in range(self.count):
            x = rng.normal(size=3).astype("float32")
            yield torch.from_numpy(x), torch.tensor([x @ WEIGHTS])


settings = {"lr": 0.05, "train_split": None, "random_state": 0, "verbose": 0}

# A data set without length: one epoch ends when the stream does.
net = NeuralNetRegressor(
    lambda: nn.Linear(3, 1), max_epochs=3, batch_size=GeoDamp(initial=8, delay=1), **settings
)
net.fit(Readings(500), None)
print(net.history_frame()[["epoch", "updates", "batch_size", "train_loss"]].to_string(index=False))

# Batches that arrive one by one: partial_fit continues where the last call stopped.
online = NeuralNetRegressor(lambda: nn.Linear(3, 1), max_epochs=1, batch_size=16, **settings)
rng = np.random.default_rng(1)
for hour in range(1, 5):
    X = rng.normal(size=(200, 3)).astype("float32")
    online.partial_fit(X, X @ WEIGHTS)
    print(f"hour {hour}: R² on what comes next {online.score(X, X @ WEIGHTS):.4f}")
