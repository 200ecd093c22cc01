"""Two batch-size policies written by a user: a function, and a class with a memory.

Run it with ``python examples/own_policy.py``.
"""

from dataclasses import dataclass

from sklearn.datasets import load_digits
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.policies import Decision, Policy, replay

X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")


def one_percent_more(signals):
    """Let the batch grow by a percent with every update."""
    return 16 * 1.01**signals.update


@dataclass(frozen=True)
class HalfTheLoss(Policy):
    """Double the batch whenever the loss has halved since the last time."""

    initial: int = 16

    def start(self):
        return {"size": self.initial, "goal": 0.0}

    def decide(self, signals, state):
        size, goal, loss = state["size"], state["goal"], signals.loss
        if goal == 0 and loss > 0:  # before the first update the loss is nan
            goal = loss / 2
        elif loss <= goal:
            size, goal = 2 * size, loss / 2
        return Decision(batch_size=size), {"size": size, "goal": goal}


recorded = {"loss": [2.0, 1.5, 1.0, 0.6, 0.5, 0.2]}
print("replayed:", replay(HalfTheLoss(), recorded)["batch_size"].tolist())

for policy in (one_percent_more, HalfTheLoss(initial=16)):
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=64,
        module__out_features=10,
        criterion=nn.CrossEntropyLoss,
        lr=0.5,
        max_epochs=8,
        batch_size=policy,
        max_batch_size=512,
        random_state=0,
        verbose=0,
    ).fit(X, y)
    last = net.history_frame().iloc[-1]
    name = getattr(policy, "__name__", repr(policy))
    print(f"{name}: batch {last.batch_size:.0f}, accuracy {last.valid_acc:.3f}")
