"""The tuning tasks of ``search_real.py``: data, an estimator with ``partial_fit``, and a space."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split
from torch import nn

from accelerando.search import WarmStart

LOG = "log"  # a range that is drawn on the scale of its logarithm


class Task(NamedTuple):
    """A model to tune. A range is ("log", low, high); a list holds choices."""

    name: str
    estimator: Any
    space: dict[str, Any]
    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]

    @property
    def distributions(self) -> dict[str, Any]:
        """The space for scikit-learn and accelerando."""
        return {
            name: loguniform(*values[1:]) if values[0] == LOG else list(values)
            for name, values in self.space.items()
        }

    def suggest(self, trial: Any) -> dict[str, Any]:
        """The space for Optuna."""
        return {
            name: trial.suggest_float(name, *values[1:], log=True)
            if values[0] == LOG
            else trial.suggest_categorical(name, list(values))
            for name, values in self.space.items()
        }


class Net(ClassifierMixin, BaseEstimator):
    """A small network; a call of ``partial_fit`` is one pass over the rows."""

    def __init__(
        self, kind="mlp", lr=0.01, momentum=0.9, weight_decay=1e-4, width=64, batch_size=128,
        random_state=None,
    ):  # fmt: skip
        self.kind = kind
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.width = width
        self.batch_size = batch_size
        self.random_state = random_state

    def _build(self, X, classes):
        if self.kind == "mlp":
            layers = [
                nn.Linear(X.shape[1], self.width), nn.ReLU(), nn.Linear(self.width, self.width),
                nn.ReLU(), nn.Linear(self.width, classes),
            ]  # fmt: skip
        else:
            width = self.width // 4
            layers = [
                nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, width, 3), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(50 * width, classes),
            ]  # fmt: skip
        return nn.Sequential(*layers)

    def partial_fit(self, X, y, classes=None):
        torch.set_num_threads(1)  # two workers share two cores
        if not hasattr(self, "net_"):
            torch.manual_seed(self.random_state or 0)
            self.classes_ = np.unique(y) if classes is None else np.asarray(classes)
            self.net_ = self._build(X, len(self.classes_))
            self.optimizer_ = torch.optim.SGD(
                self.net_.parameters(), lr=self.lr, momentum=self.momentum,
                weight_decay=self.weight_decay,
            )  # fmt: skip
            self.passes_ = 0
        order = np.random.default_rng([self.random_state or 0, self.passes_]).permutation(len(X))
        self.passes_ += 1
        rows = torch.from_numpy(np.require(X, requirements="W"))  # joblib maps arrays read-only
        targets = torch.from_numpy(np.searchsorted(self.classes_, y))
        for batch in np.array_split(order, max(1, len(X) // self.batch_size)):
            self.optimizer_.zero_grad()
            nn.functional.cross_entropy(self.net_(rows[batch]), targets[batch]).backward()
            self.optimizer_.step()
        return self

    def predict(self, X):
        torch.set_num_threads(1)
        with torch.no_grad():
            scores = self.net_(torch.from_numpy(np.require(X, requirements="W")))
        return self.classes_[scores.argmax(1).numpy()]


NETS = {
    "lr": (LOG, 1e-4, 1.0),
    "momentum": (0.0, 0.5, 0.9, 0.99),
    "weight_decay": (LOG, 1e-6, 1e-1),
    "width": (16, 32, 64, 128),
    "batch_size": (32, 64, 128, 256, 512),
}
TREES = {
    "estimator__learning_rate": (LOG, 1e-3, 2.0),
    "estimator__max_leaf_nodes": (3, 7, 15, 31, 63),
    "estimator__min_samples_leaf": (1, 5, 20, 80, 200),
    "estimator__l2_regularization": (LOG, 1e-4, 1e2),
}


def tasks(data: Path, *, quick: bool) -> list[Task]:
    """Return the three tasks. `data` holds covertype.npz and fashion_mnist.npz."""
    n = 1500 if quick else 8000
    digits = load_digits(return_X_y=True)
    rows = slice(0, 600 if quick else None)
    trees = WarmStart(HistGradientBoostingClassifier(early_stopping=False), step=1 if quick else 3)
    made = [
        ("Covertype MLP", Net("mlp"), NETS, *_covertype(data / "covertype.npz", n)),
        ("Fashion-MNIST CNN", Net("cnn"), NETS, *_fashion(data / "fashion_mnist.npz", n // 3)),
        ("digits boosting", trees, TREES, digits[0][rows], digits[1][rows]),
    ]
    listed = []
    for name, estimator, space, X, y in made:
        X, Xv, y, yv = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
        listed.append(Task(name, estimator, space, (X, y), (Xv, yv)))
    return listed


def _covertype(path: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    stored = np.load(path)
    chosen = np.random.default_rng(0).choice(len(stored["y"]), n * 4 // 3, replace=False)
    numbers = stored["num"].T[chosen].astype(np.float32)
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    indicators = [
        np.eye(int(stored[name].max()) + 1, dtype=np.float32)[stored[name][chosen]]
        for name in ("wild", "soil")
    ]
    return np.hstack([numbers, *indicators]), stored["y"][chosen].astype(np.int64)


def _fashion(path: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    stored = np.load(path)
    rows = slice(0, n * 4 // 3)
    images = stored["x_train"][rows].reshape(-1, 784).astype(np.float32) / 255
    return images, stored["y_train"][rows].astype(np.int64)
