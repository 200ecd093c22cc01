"""A regression with two targets, and a module with two inputs that are passed by name.

Run it with ``python examples/multi_output.py``.
"""

import numpy as np
import torch
from torch import nn

from accelerando import NeuralNetRegressor
from accelerando.batch_size import PadaDamp

rng = np.random.default_rng(0)
place = rng.uniform(-1, 1, (800, 2)).astype("float32")
hour = rng.uniform(0, 24, (800, 1)).astype("float32")
# Two numbers to predict for each row: a temperature and a humidity.
temperature = 15 + 8 * np.sin(hour * np.pi / 12) - 3 * place[:, :1]
humidity = 60 - 2 * temperature / 3 + 5 * place[:, 1:]
y = np.hstack([temperature, humidity]).astype("float32")
scale = y.std(axis=0)


class Weather(nn.Module):
    """A layer for each input, one output with two columns."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.hour = nn.Linear(2, 32), nn.Linear(2, 32)
        self.output = nn.Linear(32, 2)

    def forward(self, place: torch.Tensor, hour: torch.Tensor) -> torch.Tensor:
        angle = hour * torch.pi / 12
        clock = torch.cat([angle.sin(), angle.cos()], dim=1)
        return self.output(torch.relu(self.place(place) + self.hour(clock)))


net = NeuralNetRegressor(
    Weather,
    optimizer=torch.optim.Adam,
    lr=0.02,
    max_epochs=30,
    batch_size=PadaDamp(initial=16, rate=0.1),
    random_state=0,
    verbose=0,
)
X = {"place": place, "hour": hour}  # the names of forward's arguments
net.fit(X, y / scale)
predicted = net.predict(X) * scale
error = np.abs(predicted - y).mean(axis=0)
print(f"shape of the predictions: {predicted.shape}")
print(f"mean error: {error[0]:.2f} degrees, {error[1]:.2f} percent")
print(f"R² of both targets: {net.score(X, y / scale):.3f}")
print("batch sizes:", net.history_frame()["batch_size"].iloc[[0, 9, 19, 29]].tolist())
