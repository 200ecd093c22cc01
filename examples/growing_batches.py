"""A classifier whose batch size doubles every few epochs, and what that did.

Run it with ``python examples/growing_batches.py [picture.png]``.
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from accelerando import NeuralNetClassifier, plot
from accelerando.batch_size import GeoDamp

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")  # PyTorch's layers compute in 32 bits
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)


class Net(nn.Module):
    """One hidden layer; its width is a parameter of the estimator: ``module__hidden``."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


net = NeuralNetClassifier(
    Net,
    module__hidden=128,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.SGD,
    optimizer__momentum=0.9,
    lr=0.05,
    max_epochs=15,
    batch_size=GeoDamp(initial=16, delay=3, factor=2),
    max_batch_size=128,  # from there on the learning rate falls instead
    random_state=0,
    verbose=0,
)
net.fit(X_train, y_train)  # a fifth of these is kept back for validation, as in skorch

columns = ["epoch", "updates", "batch_size", "lr", "valid_loss", "valid_acc"]
print(net.history_frame()[columns].iloc[::3].to_string(index=False))
print(f"accuracy on the test set: {net.score(X_test, y_test):.3f}")

if len(sys.argv) > 1:
    plot.training(net).savefig(sys.argv[1])
