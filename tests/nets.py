"""Modules and estimators that several tests share."""

from __future__ import annotations

import torch
from torch import nn

from accelerando import NeuralNetClassifier, NeuralNetRegressor


class MLP(nn.Module):
    def __init__(self, inputs=64, hidden=32, outputs=10, dropout=0.0, norm=False):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))


class CNN(nn.Module):
    """For digits as 1 x 8 x 8 images."""

    def __init__(self, use_view=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.last = nn.Linear(8 * 4 * 4, 10)
        self.use_view = use_view

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        x = x.view(len(x), -1) if self.use_view else x.flatten(1)
        return self.last(x)


def classifier(module=MLP, **params):
    defaults = {
        "criterion": nn.CrossEntropyLoss,
        "lr": 0.1,
        "max_epochs": 3,
        "batch_size": 64,
        "random_state": 0,
        "verbose": 0,
    }
    return NeuralNetClassifier(module, **{**defaults, **params})


def regressor(module=nn.Linear, **params):
    defaults = {
        "module__in_features": 3,
        "module__out_features": 1,
        "lr": 0.05,
        "max_epochs": 3,
        "batch_size": 16,
        "train_split": None,
        "random_state": 0,
        "verbose": 0,
    }
    if module is not nn.Linear:
        del defaults["module__in_features"], defaults["module__out_features"]
    return NeuralNetRegressor(module, **{**defaults, **params})


def parameters_of(net):
    return torch.cat([p.detach().flatten() for p in net.module_.parameters()])


class Gated(nn.Module):
    """One branch is used for some rows only, another never."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 10)
        self.extra = nn.Linear(64, 10)
        self.never = nn.Linear(2, 2)

    def forward(self, x):
        high = x[:, 20] > 0.9
        out = self.base(x)
        if high.any():
            out = out + high[:, None] * self.extra(x)
        return out


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(32, 10)
        self.right = nn.Linear(32, 10)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


class Items(torch.utils.data.Dataset):
    """Rows one at a time, as a file-backed data set would give them."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        return self.X[row], self.y[row]


class ScaledLoss(nn.Module):
    """A criterion with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, y_pred, y):
        scaled = y_pred * self.log_scale.exp()
        return nn.functional.cross_entropy(scaled, y)
