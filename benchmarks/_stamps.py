"""When did which rank finish an update? Written down by the ranks themselves.

A clock inside the library might stand still during the very pause that is to be measured. The
optimizer is the user's, so a user's optimizer writes down the time of each of its steps.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

Stamps = dict[int, np.ndarray]  # process id -> times of its updates, in order

_files: dict[tuple[int, str], int] = {}


def stamp(folder: str) -> None:
    """Append the time to this process's file; one write, so a kill leaves no half line behind."""
    key = (os.getpid(), folder)
    if key not in _files:
        path = os.path.join(folder, str(os.getpid()))
        _files[key] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_files[key], f"{time.time():.6f}\n".encode())


class StampedSGD(torch.optim.SGD):
    """SGD that leaves a stamp in a folder after every step."""

    def __init__(self, params: Any, folder: str, **settings: Any) -> None:
        super().__init__(params, **settings)
        for group in self.param_groups:  # where it survives pickling
            group["folder"] = folder

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        stamp(self.param_groups[0]["folder"])
        return result


def read_stamps(folder: str) -> Stamps:
    """Return the times written so far."""
    return {
        int(path.name): np.array([float(line) for line in path.read_text().split()])
        for path in Path(folder).iterdir()
        if path.name.isdigit()
    }
