"""CIFAR-10, and small networks in the style of ResNet for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from _common import NoDataError


class Cifar(NamedTuple):
    """A class-balanced part of CIFAR-10: bytes of shape (n, 3, 32, 32), classes as int64."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def cifar(folder: Path | None) -> Cifar:
    """Load a class-balanced part of CIFAR-10."""
    path = (folder or Path()) / "cifar10_small.npz"
    if not path.exists():
        raise NoDataError(
            "Pass --data DIR with cifar10_small.npz (x_train and x_test: uint8 images of "
            "32 × 32 × 3; y_train and y_test: classes)."
        )
    with np.load(path) as file:
        x_train, x_test = (
            np.ascontiguousarray(file[name].transpose(0, 3, 1, 2)) for name in ("x_train", "x_test")
        )
        return Cifar(x_train, _classes(file["y_train"]), x_test, _classes(file["y_test"]))


def _classes(labels: np.ndarray) -> np.ndarray:
    return labels.astype(np.int64)


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Turn bytes into numbers from -1 to 1."""
    return images.float() / 127.5 - 1


class Scale(nn.Module):
    """As a first layer, so that images travel to the ranks as bytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x)


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(width: int, *, stride: int = 1) -> nn.Sequential:
    """ResNet with three stages of two blocks, for images of 32 × 32.

    A first convolution with stride 2 makes all others four times cheaper.
    """
    stages, inputs = [], width
    for number in range(3):
        outputs = width << number
        stages += [Block(inputs, outputs, 1 if number == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    first = nn.Sequential(
        nn.Conv2d(3, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    return nn.Sequential(first, *stages, last)
