"""Modules, data, callbacks and estimators of the reference runs: tiny, and in double precision.

Only the public interface of accelerando is used here and in the other files of this folder, so
that the same runs can be made by every version of the library.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import torch
from skorch.callbacks import Callback
from torch import nn

from accelerando import NeuralNet, NeuralNetClassifier, NeuralNetRegressor

MOMENTUM = {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9, "lr": 0.05}
ADAM = {"optimizer": torch.optim.Adam, "lr": 0.02}
N, INPUTS, CLASSES = 61, 4, 3  # a prime number of rows: the last batch of an epoch is short


def problem(n=N, inputs=INPUTS, seed=0, dtype="float64"):
    """Return X and the classes of a small classification problem."""
    rng = np.random.RandomState(seed)
    X = rng.normal(size=(n, inputs))
    scores = X @ rng.normal(size=(inputs, CLASSES)) + 0.3 * rng.normal(size=(n, CLASSES))
    return X.astype(dtype), scores.argmax(1)


def line(n=N, seed=1):
    """Return X and y of a small linear regression."""
    rng = np.random.RandomState(seed)
    X = rng.normal(size=(n, INPUTS))
    return X, X @ rng.normal(size=(INPUTS, 1)) + 0.1 * rng.normal(size=(n, 1))


def images(n=37, seed=2):
    """Return images of 2 x 6 x 6 and their classes."""
    rng = np.random.RandomState(seed)
    return rng.normal(size=(n, 2, 6, 6)), rng.randint(CLASSES, size=n)


class MLP(nn.Module):
    def __init__(self, inputs=INPUTS, hidden=5, dropout=0.0, norm=False, double=True):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, CLASSES)
        if double:
            self.double()

    def forward(self, x):
        return self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))


class Probabilities(MLP):
    def forward(self, x):
        return super().forward(x).softmax(1)


class Wide(MLP):
    """Its first matrix is large enough for codecs, which leave small ones as they are."""

    def __init__(self, **settings):
        super().__init__(inputs=32, hidden=40, **settings)


class Large(MLP):
    """More than a MiB of parameters, which a process group sends in several buckets."""

    def __init__(self):
        super().__init__(hidden=18_000)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(INPUTS, 1).double()

    def forward(self, x):
        return self.linear(x)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.last = nn.Linear(3 * 3 * 3, CLASSES)
        self.double()

    def forward(self, x):
        return self.last(nn.functional.max_pool2d(torch.tanh(self.conv(x)), 2).flatten(1))


class Gated(nn.Module):
    """One layer is used for some rows only, another never."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(INPUTS, CLASSES)
        self.extra = nn.Linear(INPUTS, CLASSES)
        self.never = nn.Linear(2, 2)
        self.double()

    def forward(self, x):
        high = x[:, 0] > 1.2
        out = self.base(x)
        if high.any():
            out = out + high[:, None] * self.extra(x)
        return out


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(2, CLASSES).double()
        self.right = nn.Linear(2, CLASSES).double()

    def forward(self, left, right):
        return self.left(left) + self.right(right)


class ScaledLoss(nn.Module):
    """A criterion that learns, too."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, y_pred, y):
        return nn.functional.cross_entropy(y_pred * self.log_scale.exp(), y)


class Mortal(MLP):
    """Kills the first process that calls it `calls` times, if the file `mark` is not there yet."""

    def __init__(self, mark=None, calls=0):
        super().__init__()
        self.mark, self.left = mark, calls

    def forward(self, x):
        if self.training and self.mark is not None:
            self.left -= 1
            if self.left == 0 and _create(self.mark):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def _create(path):
    """Create a file; one process only succeeds."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Rows(torch.utils.data.Dataset):
    """Rows one at a time, as a data set on a disk would give them."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        return self.X[row], self.y[row]


class Stream(torch.utils.data.IterableDataset):
    """Rows in their order, of unknown number."""

    def __init__(self, X, y):
        super().__init__()
        self.X, self.y = X, y

    def __iter__(self):
        return iter(zip(self.X, self.y, strict=True))


def collate(rows):
    """Put rows together, and scale them so that it shows when this was not called."""
    X = torch.stack([torch.as_tensor(x) for x, _ in rows])
    return 2 * X, torch.tensor([int(y) for _, y in rows])


class StopAfter(Callback):
    """Interrupt the run after some updates, as Ctrl-C would."""

    def __init__(self, updates):
        self.updates = updates
        self.count = 0

    def on_batch_end(self, net, training=None, **kwargs):
        self.count += bool(training)
        if training and self.count == self.updates:
            raise KeyboardInterrupt


class SaveAfter(Callback):
    """Save the state at the end of an epoch."""

    def __init__(self, path, epoch=1):
        self.path = path
        self.epoch = epoch

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == self.epoch:
            net.save_state(self.path)


class KillAfter(Callback):
    """Kill one worker of the cluster at the end of an epoch."""

    def __init__(self, epoch=1):
        self.epoch = epoch

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == self.epoch:
            pids = net.client.run(os.getpid)
            os.kill(pids[min(pids)], signal.SIGKILL)


def classifier(module=MLP, kind=NeuralNetClassifier, **params):
    defaults = {
        "criterion": nn.CrossEntropyLoss,
        "lr": 0.1,
        "max_epochs": 3,
        "batch_size": 8,
        "train_split": None,
        "random_state": 0,
        "verbose": 0,
    }
    return kind(module, **{**defaults, **params})


def regressor(**params):
    return classifier(Line, NeuralNetRegressor, **{"criterion": nn.MSELoss, **params})


def plain_net(**params):
    return classifier(kind=NeuralNet, **params)


def add(table, group, name, fit):
    """Enter a run into a table under "group: name"."""
    key = f"{group}: {name}"
    assert key not in table, key
    table[key] = fit
