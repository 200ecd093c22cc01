"""Does a period that adapts give better models than a constant one, for no more communication?

Table I and Figures 1 to 3 of Jiang and Agrawal, *Adaptive periodic averaging* (ADPSGD), with
virtual ranks in one process: what ranks learn, not how fast they are. A small convolutional
network, 16 ranks with batches of 128 rows, SGD with momentum 0.9, and a learning rate that falls
to a tenth after half and after three quarters of the epochs:

FULLSGD       gradients averaged in every update, the rate times 1 and 4 (--rates for others)
CPSGD         parameters averaged after p = 4, 6, 8 updates (--periods for others)
ADPSGD        Algorithm 2
also with --all: small batch (one rank, batch 128); ADPSGD with momentum averaged, and reset; the
              decreasing schedule of Wang and Joshi; QSGD with 8 bits, which one process applies
              once to the gradient of the whole batch, where 16 ranks would each apply it to theirs

Two regimes. *All rows*: 60,000 of Fashion-MNIST, 80 epochs (2,320 updates), so that optimization
limits accuracy. *Few rows* (--few): 10,000, where every way fits the training set in the end and
overfitting limits accuracy; averaging seldom is then a regularizer, and a way with a larger
training loss is often the more accurate one. The page of evidence takes its verdict from all rows.

Reported are the best test accuracy, the training loss of the last epoch, how often ranks met, V_t,
the mean variance of the ranks' parameters between two averagings, in the first half and in the
second, and the paper's criterion (9), the mean of Var[W_k] weighted by the learning rate: smaller
is better for the same number of averagings. Means over the seeds. The data are Fashion-MNIST, or
CIFAR-10 from a file with x_train, y_train, x_test, y_test (--cifar FILE). --cache FILE keeps what
is finished, so that it can be run in pieces. --quick has too few examples and epochs to say which
is better; it shows that it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from skorch.callbacks import LRScheduler
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from _cifar import as_images, read_cifar
from _common import (
    Cache,
    Images,
    NoDataError,
    console,
    count_parameters,
    fashion_mnist,
    output_path,
    parser,
    print_table,
    write,
)
from accelerando import NeuralNetClassifier
from accelerando.compress import QSGD
from accelerando.monitor import ParameterSpread
from accelerando.sync import AdaptiveAveraging, DecreasingAveraging, PeriodicAveraging

PAPER = {
    "small batch": (93.68, 92.45),
    "ADPSGD": (93.49, 92.17),
    "CPSGD": (93.08, 91.29),
    "FULLSGD": (92.94, 92.10),
}  # % on CIFAR-10: GoogLeNet, VGG16; the best of all periods and rates


class Network(nn.Module):
    """Three convolutions with BatchNorm, and a dense layer."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(3):
            outputs = width << number
            layers += [nn.Conv2d(channels, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs)]
            layers += [nn.ReLU()]
            channels = outputs
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def ways(args: argparse.Namespace, ranks: int, rows: int, epochs: int) -> dict[str, dict]:
    """Return the settings of every way to train."""
    watch = [ParameterSpread(every=1)]
    many = {"virtual_ranks": ranks, "batch_size": rows}
    found: dict[str, dict] = {}
    for times in args.rates:
        found[f"FULLSGD lr x {times}"] = {**many, "lr_times": times}
    for period in args.periods:
        strategy = PeriodicAveraging(period)
        found[f"CPSGD p = {period}"] = {**many, "sync": strategy, "monitors": watch}
    found["ADPSGD"] = {**many, "sync": AdaptiveAveraging(), "monitors": watch}
    if not args.all:
        return found
    found["small batch"] = {"batch_size": rows}
    for how in ("average", "reset"):
        adaptive = AdaptiveAveraging(optimizer_state=how)
        found[f"ADPSGD, momentum: {how}"] = {**many, "sync": adaptive, "monitors": watch}
    slow = DecreasingAveraging(16, every_epochs=max(1, epochs // 8))
    found["decreasing"] = {**many, "sync": slow, "monitors": watch}
    found["QSGD 8 bits"] = {"batch_size": ranks * rows, "compression": QSGD(bits=8)}
    return found


def train(way: dict, images: Images, epochs: int, lr: float, width: int, seed: int) -> dict:
    """Train once; return what is compared."""
    settings = dict(way)
    lr *= settings.pop("lr_times", 1)
    torch.manual_seed(seed)
    module = Network(images.x_train.shape[1], width)
    module(images.x_train[:2])  # a lazy layer learns its inputs
    steps = [max(1, epochs // 2), max(2, 3 * epochs // 4)]
    net = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        lr=lr,
        optimizer__momentum=0.9,
        max_epochs=epochs,
        train_split=predefined_split(Dataset(images.x_test, images.y_test)),
        callbacks=[LRScheduler(torch.optim.lr_scheduler.MultiStepLR, milestones=steps)],
        random_state=seed,
        verbose=0,
        **settings,
    ).fit(images.x_train, images.y_train)
    frame, updates = net.history_frame(), net.updates_frame()
    last = updates[updates["epoch"] == epochs]
    row = {
        "accuracy": frame["valid_acc"].tolist(),
        "train_loss": float(np.average(last["loss"], weights=last["batch_size"])),
        "updates": len(updates),
        "synchronisations": None if "virtual_ranks" not in settings else len(updates),
        # One process sends nothing, whatever it quantizes.
        "megabytes": float(updates["bytes"].sum()) / 1e6 if "virtual_ranks" in settings else None,
    }
    if "averagings" in updates.columns:
        row["synchronisations"] = int(updates["averagings"].iloc[-1])
        row["periods"] = updates["period"].iloc[:: max(1, len(updates) // 200)].tolist()
        if "parameter_spread" in updates.columns:
            row["variance"] = variance(updates)
            row["criterion"] = criterion(updates)
    return row


def variance(updates: Any) -> list[float]:
    """Return the mean of Var[W_k] at the beginning of updates, in each half of the run.

    Weighted by updates, the mean of V_t is the mean of what it is a mean of.
    """
    before = variances(updates)
    half = len(before) // 2
    return [float(before[:half].mean()), float(before[half:].mean())]


def criterion(updates: Any) -> float:
    """Return (9) of the paper, the mean of Var[W_k] weighted by the learning rate."""
    return float(np.average(variances(updates), weights=updates["lr"]))


def variances(updates: Any) -> Any:
    """Return Var[W_k] at the beginning of each update: zero after an averaging."""
    met = updates["spread"].notna()
    return updates["parameter_spread"].shift(1).where(~met.shift(1, fill_value=True), 0.0)


def means(name: str, runs: list[dict]) -> dict[str, Any]:
    """Return the numbers that every way has, over the seeds."""
    best = [max(run["accuracy"]) for run in runs]
    return {
        "way": name,
        "best_accuracy": mean(best),
        "deviation": float(np.std(best, ddof=1)) if len(best) > 1 else None,
        "train_loss": mean(run["train_loss"] for run in runs),
        "updates": runs[0]["updates"],
        "seeds": len(runs),
    }


def cells(row: dict[str, Any]) -> list[Any]:
    """Return the first cells of a row of the table."""
    apart = "" if row["deviation"] is None else f" ± {row['deviation']:.2%}"
    best, loss = f"{row['best_accuracy']:.2%}{apart}", f"{row['train_loss']:.4f}"
    return [row["way"], best, loss, row["updates"]]


def summary(name: str, runs: list[dict]) -> dict[str, Any]:
    """Return means over the seeds."""
    row = {**means(name, runs), "synchronisations": None, "megabytes": None}
    if runs[0]["synchronisations"] is not None:
        row["megabytes"] = mean(run["megabytes"] for run in runs)
        row["synchronisations"] = mean(run["synchronisations"] for run in runs)
    if "variance" in runs[0]:
        row["criterion"] = mean(run["criterion"] for run in runs)
        row["variance_of_halves"] = np.mean([run["variance"] for run in runs], axis=0).tolist()
    return row


def verdict(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return what the page of evidence says."""
    adaptive = next(row for row in rows if row["way"] == "ADPSGD")
    constant = [row for row in rows if row["way"].startswith("CPSGD")]
    full = max(
        (r for r in rows if r["way"].startswith("FULLSGD")), key=lambda r: r["best_accuracy"]
    )
    met, found = adaptive["synchronisations"], adaptive["best_accuracy"]
    more = [r for r in constant if r["synchronisations"] >= met]
    best = max(more, key=lambda r: r["best_accuracy"], default=None)
    # Two deviations of a difference of two means over the seeds.
    apart = [row["deviation"] or 0.0 for row in (adaptive, full)]
    noise = 2.0 * (sum(one**2 for one in apart) / max(1, adaptive["seeds"])) ** 0.5
    nearest = min(constant, key=lambda r: abs(r["synchronisations"] - met), default=None)
    good = [
        best is not None and found >= best["best_accuracy"],
        found >= full["best_accuracy"] - noise,
        nearest is not None and adaptive["criterion"] <= nearest["criterion"],
    ]
    text = f"{found:.2%} (training loss {adaptive['train_loss']:.3f}) with {met:.0f} averagings"
    if best is not None:
        text += (
            f", against {best['best_accuracy']:.2%} ({best['train_loss']:.3f}) for {best['way']} "
            f"with {best['synchronisations']:.0f}"
        )
    text += (
        f", and {full['best_accuracy']:.2%} ({full['train_loss']:.3f}) for full synchronization, "
        f"of which {noise:.2%} may be noise"
    )
    if nearest is not None:
        text += (
            f"; criterion (9) is {adaptive['criterion']:.3g}, {nearest['criterion']:.3g} for "
            f"{nearest['way']} with {nearest['synchronisations']:.0f} averagings"
        )
    return {
        "adpsgd-accuracy": {
            "measured": f"{text}; virtual ranks, a small network",
            "verdict": "yes" if all(good) else "partly" if any(good) else "**no**",
        }
    }


def options(description: str, *, epochs: int, ranks: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks of averaging, and these defaults."""
    made = parser(description)
    made.add_argument("--cifar", type=Path, metavar="FILE", help="CIFAR-10 as an npz file")
    made.add_argument("--seeds", type=int, help="runs of each way (default: 3)")
    made.add_argument("--epochs", type=int, help=f"of each run (default: {epochs})")
    made.add_argument("--lr", type=float, default=0.1)
    made.add_argument("--ranks", type=int, default=ranks)
    return made


def load(args: argparse.Namespace) -> Images:
    """Return the images that the options name."""
    try:
        return as_images(read_cifar(args.cifar)) if args.cifar else fashion_mnist(args.data)
    except NoDataError as error:
        raise SystemExit(str(error)) from error


def run_each(
    ways: dict[str, dict], about: str, args: argparse.Namespace, train_once: Callable[..., dict]
) -> Iterator[tuple[str, list[dict]]]:
    """Yield the name of each way and its runs, one for each seed; those in the cache are kept.

    `about` is the part of the keys of the cache that says how long and on what runs train.
    """
    cache = Cache(args.cache)
    for name, way in ways.items():
        runs = []
        for seed in range(args.seeds or (1 if args.quick else 3)):
            key = f"{name}/{seed}/{about}"
            if key not in cache:
                cache[key] = train_once(way, seed=seed)
            runs.append(cache[key])
            console.print(f"{name}, seed {seed}: {max(cache[key]['accuracy']):.4f}")
        yield name, runs


def arguments() -> argparse.Namespace:
    """Read the command line."""
    made = options(__doc__ or "", epochs=80, ranks=16)
    made.add_argument("--rows", type=int, help="of a rank's batch (default: 128)")
    made.add_argument("--width", type=int, help="channels of the first layer (default: 8)")
    made.add_argument("--periods", type=int, nargs="+", default=[4, 6, 8])
    made.add_argument("--rates", type=int, nargs="+", default=[1, 4])
    made.add_argument("--all", action="store_true", help="all ways")
    made.add_argument("--few", action="store_true", help="10,000 rows")
    return made.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    quick, images = args.quick, load(args)
    if quick:
        images = Images(*(part[: 1280 if k < 2 else 500] for k, part in enumerate(images)))
        args.periods, args.rates = [4], [1, 4]
    elif args.few:
        images = Images(*(part[:10_000] for part in images))
    epochs = args.epochs or (4 if quick else 80)
    rows, width = args.rows or (8 if quick else 128), args.width or (4 if quick else 8)
    data = f"{len(images.x_train)}/{bool(args.cifar)}"
    about = f"{epochs}/{data}/{args.lr}/{args.ranks}/{rows}/{width}"
    once = partial(train, images=images, epochs=epochs, lr=args.lr, width=width)
    every = dict(run_each(ways(args, args.ranks, rows, epochs), about, args, once))
    table = [summary(name, runs) for name, runs in every.items()]
    show(table)
    module = Network(images.x_train.shape[1], width)
    module(images.x_train[:2])
    settings = {
        "epochs": epochs, "seeds": len(every["ADPSGD"]), "lr": args.lr, "ranks": args.ranks,
        "rows_per_rank": rows, "parameters": count_parameters(module),
        "examples": len(images.x_train), "data": "CIFAR-10" if args.cifar else "Fashion-MNIST",
        "paper": PAPER,
    }  # fmt: skip
    found = {} if quick or args.few else {"evidence": verdict(table)}
    name = "averaging_quality_few.py" if args.few else __file__
    write(output_path(args, name), __file__, settings, rows=table, **found)


def show(table: list[dict[str, Any]]) -> None:
    """Print the table."""
    shown = []
    for row in table:
        halves = row.get("variance_of_halves", [None, None])
        met = row["synchronisations"]
        shown.append(
            [
                *cells(row),
                None if met is None else f"{met:.0f}",
                None if met is None else f"{row['megabytes']:,.1f}",
                *(None if half is None else f"{half:.3g}" for half in halves),
                None if "criterion" not in row else f"{row['criterion']:.3g}",
            ]
        )
    columns = ["", "best test accuracy", "training loss", "updates", "met", "MB"]
    print_table("Averaging", [*columns, "V, first half", "V, second half", "(9)"], shown)


if __name__ == "__main__":
    main()
