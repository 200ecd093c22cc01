"""Draw docs/images/batches-grow.png: python docs/batches-picture.py

One network trains on handwritten digits with a constant batch. At the end of every epoch the
gradients of all training examples are taken one by one: their mean, and how far they scatter.
"""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from skorch.callbacks import Callback
from torch import nn
from torch.func import functional_call, grad, vmap

from accelerando import NeuralNetClassifier
from accelerando.batch_size import RadaDamp

PICTURE = Path(__file__).parent / "images" / "batches-grow.png"
EPOCHS = 30
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


class Scatter(Callback):
    """Squared length of the mean gradient, and the mean squared distance of gradients from it."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor) -> None:
        self.X, self.y = X, y

    def on_epoch_end(self, net: NeuralNetClassifier, **kwargs: object) -> None:
        module = net.module_.eval()
        parameters = {name: value.detach() for name, value in module.named_parameters()}

        def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(functional_call(module, values, (x,)), y)

        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, self.X, self.y)
        flat = torch.cat([g.flatten(1) for g in each.values()], dim=1)
        mean = flat.mean(dim=0)
        net.history.record("signal", float(mean.square().sum()))
        net.history.record("noise", float((flat - mean).square().sum(dim=1).mean()))


def train(batch_size: object) -> tuple[NeuralNetClassifier, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        criterion=nn.CrossEntropyLoss,
        lr=0.05,
        max_epochs=EPOCHS,
        batch_size=batch_size,
        train_split=None,
        callbacks=[Scatter(torch.from_numpy(X), torch.from_numpy(y))],
        random_state=0,
        verbose=0,
    )
    net.fit(X, y)
    return net, np.array(net.history[:, ("signal", "noise")], dtype=float)


def main() -> None:
    torch.set_num_threads(1)
    _, found = train(16)
    grown, _ = train(RadaDamp(initial=16))
    epochs = np.arange(1, EPOCHS + 1)
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(epochs, found[:, 1], color=ORANGE, lw=2, label="scatter of gradients")
    left.plot(epochs, found[:, 0], color=BLUE, lw=2, label="mean gradient, squared")
    left.set(yscale="log", ylabel="constant batch of 16")
    left.legend(frameon=False, fontsize=9)
    middle.plot(epochs, found[:, 1] / found[:, 0], color=ORANGE, lw=2)
    middle.set(yscale="log", ylabel="scatter / mean²: examples\nthat are worth a batch")
    frame = grown.history_frame()
    right.plot(frame["epoch"], frame["batch_size"], color=GREEN, lw=2)
    right.set(ylabel="batch size that RadaDamp chose", ylim=(0, None))
    for panel in (left, middle, right):
        panel.set_xlabel("epochs")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=90)
    ratio = found[:, 1] / found[:, 0]
    print(f"scatter / mean²: {ratio[0]:.0f} after the first epoch, {ratio[-1]:.0f} after the last")
    print(f"RadaDamp: {frame['batch_size'].iloc[0]} to {frame['batch_size'].iloc[-1]} rows")


if __name__ == "__main__":
    main()
