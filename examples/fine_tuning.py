"""Fine-tuning: train a network on one task, freeze its first layers, train the last on another.

Run it with ``python examples/fine_tuning.py``.
"""

# %% A network that recognizes the digits 0 to 4
import torch
from sklearn.datasets import load_digits
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")
small, large = y < 5, y >= 5
settings = {"lr": 0.1, "random_state": 0, "verbose": 0, "train_split": None}


class Net(nn.Module):
    """A body that finds features, and a head that classifies them."""

    def __init__(self, n_classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


first = NeuralNetClassifier(Net, max_epochs=10, batch_size=GeoDamp(initial=16), **settings)
first.fit(X[small], y[small])
print(f"digits 0 to 4: {first.score(X[small], y[small]):.3f}")

# %% The same body, frozen, and a new head for the digits 5 to 9
network = Net()
network.body.load_state_dict(first.module_.body.state_dict())
for parameter in network.body.parameters():
    parameter.requires_grad = False

second = NeuralNetClassifier(network, max_epochs=50, batch_size=16, **settings)
second.fit(X[large][:100], y[large][:100])  # a hundred examples suffice
print(f"digits 5 to 9: {second.score(X[large], y[large]):.3f}")

# %% Only the head was trained
unchanged = torch.equal(second.module_.body[0].weight, first.module_.body[0].weight)
trained = sum(p.numel() for p in second.module_.parameters() if p.requires_grad)
print(f"body unchanged: {unchanged}; {trained} parameters trained")
