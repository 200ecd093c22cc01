"""Train on a folder of images with random augmentation, which other processes read.

Random numbers are seeded by image and epoch, so the number of processes does not change the result.
With ``client=`` every rank has such processes for its share of the images.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from accelerando import NeuralNetClassifier


class Folder(Dataset):
    """Images named ``<class>_<number>.png``; only their names are in memory."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.png"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        pixels = np.asarray(Image.open(self.paths[row]), dtype="float32") / 255
        shift = torch.randint(-1, 2, (2,)).tolist()  # another one in each epoch
        image = torch.from_numpy(pixels).roll(shift, (0, 1))
        return image[None], int(self.paths[row].name[0])


def train(images: Folder, processes: int) -> NeuralNetClassifier:
    """Return a net that was trained on images that `processes` processes have read."""
    return NeuralNetClassifier(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        optimizer=torch.optim.Adam,
        lr=0.01,
        batch_size=32,
        max_epochs=5,
        train_split=None,
        iterator_train__num_workers=processes,
        random_state=0,
        verbose=0,
    ).fit(images, None)


if __name__ == "__main__":  # on some systems, processes that read start Python anew
    with tempfile.TemporaryDirectory() as name:
        images, classes = load_digits(return_X_y=True)
        for row, (image, label) in enumerate(zip(images[:500], classes[:500], strict=True)):
            pixels = (image.reshape(8, 8) * 15).astype("uint8")
            Image.fromarray(pixels).save(Path(name) / f"{label}_{row}.png")
        alone, net = (train(Folder(Path(name)), processes) for processes in (0, 2))
    print(net.history_frame()[["epoch", "updates", "train_loss"]].to_string(index=False))
    equal = torch.equal(alone.module_[1].weight, net.module_[1].weight)
    print(f"equal to the last bit without them: {equal}")
