"""Stop in the middle of an epoch, save, and continue: the result is that of never having stopped.

Run it with ``python examples/resume.py``.
"""

# %% A net with a growing batch, momentum and dropout: all of it is part of the state
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from skorch.callbacks import Callback
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import RadaDamp

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")


def build(**options):
    """Return a net with the same settings each time."""
    return NeuralNetClassifier(
        lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)),
        optimizer__momentum=0.9,
        lr=0.05,
        max_epochs=4,
        batch_size=RadaDamp(initial=16, memory=0.9),
        random_state=0,
        verbose=0,
        **options,
    )


# %% Ctrl-C after 70 updates, in the middle of an epoch
class CtrlC(Callback):
    """Press Ctrl-C after 70 updates."""

    def on_batch_end(self, net, training=False, **kwargs):
        if training and len(net.updates_frame()) == 70:
            raise KeyboardInterrupt


file = Path(tempfile.mkdtemp()) / "run.state"
stopped = build(callbacks=[CtrlC()]).fit(X, y)
stopped.save_state(file)
print(f"stopped after {len(stopped.updates_frame())} updates")

# %% Another process, days later: the same settings, load, continue
resumed = build().load_state(file).partial_fit(X, y)
straight = build().fit(X, y)
print(f"{len(resumed.updates_frame())} updates, without a stop {len(straight.updates_frame())}")
equal = torch.equal(resumed.module_[0].weight, straight.module_[0].weight)
print(f"equal to the last bit: {equal}")
