"""Images in files, read and augmented row by row: the data of the standard job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

SIZE, CROP, CLASSES = 48, 40, 10


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """PNG files with a random crop, flip and brightness; only their names are in memory.

    Parameters
    ----------
    paths : list of str
        Files named ``<class>_<number>.png``.
    """

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        path = Path(self.paths[row])
        pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
        top, left = torch.randint(SIZE - CROP + 1, (2,)).tolist()
        image = pixels[:, top : top + CROP, left : left + CROP].float() / 255
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image * (0.8 + 0.4 * torch.rand(())), int(path.name[0])


def paint(folder: Path, count: int) -> ImageFiles:
    """Write images of random patches of color; return the data set that reads them."""
    generator, paths = np.random.default_rng(0), []
    for number in range(count):
        patches = generator.integers(0, 256, (SIZE // 8, SIZE // 8, 3), dtype=np.uint8)
        noise = generator.integers(0, 16, (SIZE, SIZE, 3), dtype=np.uint8)
        path = folder / f"{number % CLASSES}_{number}.png"
        Image.fromarray(patches.repeat(8, 0).repeat(8, 1) // 2 + noise).save(path)
        paths.append(str(path))
    return ImageFiles(paths)


def color_cnn() -> nn.Module:
    """Return a small convolutional net.

    It has no BatchNorm: ranks of accelerando share its statistics, those of native DDP do not.
    """
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (CROP // 8) ** 2, CLASSES))
