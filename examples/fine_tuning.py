"""Fine-tuning: train a network on one task, freeze its first layers, train the last on another.

Run it with ``python examples/fine_tuning.py``.
"""

# %% A network that recognizes handwritten digits
import torch
from sklearn.datasets import load_digits
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")
odd = y % 2
settings = {"lr": 0.1, "random_state": 0, "verbose": 0, "train_split": None}


class Net(nn.Module):
    """A body that finds features, and a head that classifies them."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


first = NeuralNetClassifier(Net, max_epochs=10, batch_size=GeoDamp(initial=16), **settings)
first.fit(X[:1000], y[:1000])
print(f"which digit: {first.score(X[1000:], y[1000:]):.3f}")

# %% The same body, frozen, and a new head: is the digit odd?
torch.manual_seed(0)  # the module is made here, so its head is not drawn from random_state
network = Net(n_classes=2)
network.body.load_state_dict(first.module_.body.state_dict())
for parameter in network.body.parameters():
    parameter.requires_grad = False

second = NeuralNetClassifier(network, max_epochs=20, batch_size=16, **settings)
second.fit(X[:100], odd[:100])
print(f"odd or even: {second.score(X[1000:], odd[1000:]):.3f}")

# %% Only the head was trained
unchanged = torch.equal(second.module_.body[0].weight, first.module_.body[0].weight)
trained = sum(p.numel() for p in second.module_.parameters() if p.requires_grad)
print(f"body unchanged: {unchanged}; {trained} parameters trained")
