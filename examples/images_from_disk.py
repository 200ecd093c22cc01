"""Train on a folder of images with random augmentation, on a cluster whose ranks read in parallel.

Every rank has a process that reads its images while it trains. Random numbers are seeded by image
and epoch, so neither ranks nor processes change the result.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from distributed import Client, LocalCluster
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


if __name__ == "__main__":  # Dask and the processes that read start Python anew
    with tempfile.TemporaryDirectory() as name:
        images, classes = load_digits(return_X_y=True)
        for row, (image, label) in enumerate(zip(images[:500], classes[:500], strict=True)):
            pixels = (image.reshape(8, 8) * 15).astype("uint8")
            Image.fromarray(pixels).save(Path(name) / f"{label}_{row}.png")
        with LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster:
            net = NeuralNetClassifier(
                nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
                criterion=nn.CrossEntropyLoss,
                optimizer=torch.optim.Adam,
                lr=0.01,
                batch_size=32,
                max_epochs=5,
                train_split=None,
                iterator_train__num_workers=1,
                random_state=0,
                verbose=0,
                client=Client(cluster),
                min_workers=2,
            )
            net.fit(Folder(Path(name)), None)
        print(net.history_frame()[["epoch", "updates", "train_loss"]].to_string(index=False))
