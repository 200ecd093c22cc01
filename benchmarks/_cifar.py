"""CIFAR-10, and small networks in the style of ResNet for it and for Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from _common import Images, NoDataError


class Cifar(NamedTuple):
    """CIFAR-10 or a part of it: bytes of shape (n, 3, 32, 32), classes as int64."""

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
    return read_cifar(path)


def read_cifar(path: Path) -> Cifar:
    """Read an npz file with x_train, y_train, x_test and y_test; channels may come last."""
    with np.load(path) as file:
        x_train, x_test = (_channels_first(file[name]) for name in ("x_train", "x_test"))
        y_train, y_test = (file[name].ravel().astype(np.int64) for name in ("y_train", "y_test"))
        return Cifar(x_train, y_train, x_test, y_test)


def _channels_first(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.shape[-1] == 3 else x)


def as_images(data: Cifar) -> Images:
    """Return the pixels as numbers from -1 to 1."""
    x_train, y_train, x_test, y_test = (torch.from_numpy(part) for part in data)
    return Images(scaled(x_train), y_train, scaled(x_test), y_test)


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


class ResNet(nn.Module):
    """A residual network of three blocks."""

    def __init__(self, channels: int = 1, width: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, width, 3, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 4 * width, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


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
