"""What the benchmarks share: arguments, data, models, facts about the machine, results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from _report import RESULTS, save, versions
from _report import command as typed

PACKAGES = ("accelerando", "torch", "skorch", "accelerate", "scikit-learn", "numpy")

# Tables keep their width when the output goes to a file.
console = Console() if sys.stdout.isatty() else Console(width=190)


# -- arguments ------------------------------------------------------------------------------------


def parser(description: str, *, data: bool = True, cache: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has, or has use for."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a short version, under two minutes")
    if data:
        made.add_argument(
            "--data",
            type=Path,
            metavar="DIR",
            help="folder with fashion_mnist.npz (x_train, y_train, x_test, y_test); "
            "without it the data come from OpenML",
        )
    made.add_argument("--output", type=Path, metavar="FILE", help="where to write the JSON")
    if cache:
        made.add_argument(
            "--cache",
            type=Path,
            metavar="FILE",
            help="keep finished rows in this file and do not compute them again",
        )
    return made


def output_path(args: argparse.Namespace, script: str) -> Path:
    """Return where the results go; a quick run never overwrites the published numbers."""
    folder = RESULTS / "quick" if args.quick else RESULTS
    path = args.output or folder / f"{Path(script).stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def command(script: str) -> str:
    """Return the command line as another person would type it: no paths of this machine."""
    private = {"--data": "DIR", "--cifar": "FILE", "--output": None, "--cache": None}
    words, skip = [], False
    for word in sys.argv[1:]:
        name = word.split("=")[0]
        if skip:
            skip = False
        elif name in private:
            skip = "=" not in word
            words += [name, private[name]] if private[name] else []
        else:
            words.append(word)
    return typed(Path(script).stem, words)


class Cache:
    """Rows that an earlier call has finished, so that a long benchmark can be run in pieces."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, Any] = {}
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text())

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __getitem__(self, key: str) -> Any:
        return self.rows[key]

    def __setitem__(self, key: str, row: Any) -> None:
        self.rows[key] = row
        if self.path is not None:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.rows))
            os.replace(part, self.path)


# -- results --------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers, and nothing that names the machine."""
    return {
        **versions(*PACKAGES),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write(path: Path, script: str, settings: dict[str, Any], **results: Any) -> None:
    """Write results with everything needed to get them again."""
    content = {"versions": facts(), "command": command(script), "settings": settings, **results}
    save(path, _short(content))
    console.print(f"Results: {_shown(path)}")


def _short(value: Any) -> Any:
    """Round to six digits: more is noise, and the file is read by people, too."""
    if isinstance(value, dict):
        return {key: _short(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_short(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.6g}") if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def save_figure(figure: Any, path: Path) -> None:
    """Write a picture that a repository can carry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, bbox_inches="tight")
    console.print(f"Picture: {_shown(path)}")


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table whose first column is text and whose other columns are numbers."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*("–" if value is None else str(value) for value in row))
    console.print(table)


# -- data -----------------------------------------------------------------------------------------


class Images(NamedTuple):
    """Fashion-MNIST: images as floats of shape (n, 1, 28, 28), classes as int64."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


class NoDataError(Exception):
    """Fashion-MNIST is neither in a folder nor to be had from OpenML."""


def fashion_mnist(folder: Path | None) -> Images:
    """Load Fashion-MNIST and scale it as PyTorch's MNIST example does."""
    if folder is None:
        x, y = _from_openml()
        parts = (x[:60_000], y[:60_000], x[60_000:], y[60_000:])
    else:
        path = folder / "fashion_mnist.npz"
        if not path.exists():
            raise NoDataError(
                f"There is no fashion_mnist.npz in the folder given by --data: {folder}"
            )
        with np.load(path) as file:
            parts = tuple(file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    x_train, y_train, x_test, y_test = parts
    return Images(scaled(x_train), _classes(y_train), scaled(x_test), _classes(y_test))


def _from_openml() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import fetch_openml

    try:
        x, y = fetch_openml("Fashion-MNIST", version=1, return_X_y=True, as_frame=False)
    except Exception as error:  # no network, a proxy, OpenML being down: the way out is the same
        raise NoDataError(
            "Fashion-MNIST could not be fetched from OpenML "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'})"
            ". Connect to the internet, or pass --data DIR with a fashion_mnist.npz inside."
        ) from error
    return x, y


def scaled(images: np.ndarray) -> torch.Tensor:
    """Scale pixels with the mean and deviation of MNIST, as the original experiment did."""
    pixels = torch.from_numpy(np.asarray(images, dtype=np.float32).reshape(-1, 1, 28, 28))
    return (pixels / 255 - 0.1307) / 0.3081


def _classes(labels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(labels).astype(np.int64))


# -- models ---------------------------------------------------------------------------------------


def mlp(*widths: int) -> nn.Sequential:
    """Return dense layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(*first: nn.Module) -> nn.Sequential:
    """Return the network of the dissertation's appendix B.4.2, 111,050 parameters.

    Modules given as `first` see the images before it.
    """
    convolutions: list[nn.Module] = []
    for inputs, outputs, width in ((1, 30, 5), (30, 60, 5), (60, 100, 3)):
        convolutions += [nn.Conv2d(inputs, outputs, width), nn.MaxPool2d(2), nn.ReLU()]
    dense = [nn.Flatten(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(*first, *convolutions, *dense)


def count_parameters(module: nn.Module) -> int:
    """Return how many numbers are trained."""
    return sum(parameter.numel() for parameter in module.parameters())
