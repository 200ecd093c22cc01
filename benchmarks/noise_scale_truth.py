"""How near to the truth are estimates of the gradient noise scale while a model moves?

One training run per case; before every few updates the exact value tr Sigma / |g|^2 over the whole
training set is computed from the gradient of every row. Beside it are

- KungFu's estimate (its MonitorGradientNoiseScaleOptimizer): halves of the batch as two peers,
  moving averages with weight 0.6 of the newest value for numerator and denominator;
- AdaptDL's (its GradientNoiseScale): the same two halves, averages with decay 1 - 2 / 1000,
  corrected for their beginning;
- ours, from the gradient norms of all rows of the same batches.

Two ways to draw the batches: with replacement, as all three assume, and epoch by epoch, as people
train. The exact value jumps between updates where the learning rate is large; so it is also
averaged over the 25 updates before and after (numerator and denominator apart), and both
comparisons are shown. What is counted: known estimates within a factor of 1.5; ours inside its own
95 % interval; both at once; values that are negative.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from _common import (
    Cache,
    NoDataError,
    console,
    fashion_mnist,
    mlp,
    output_path,
    parser,
    print_table,
    save_figure,
    write,
)
from accelerando._engine.row_norms import RowNorms
from accelerando.monitor import GradientNoiseScale, Observation

WINDOW = 25
CASES = {
    "MLP, batch 16, SGD": ("digits", 16, "sgd", 0.05),
    "MLP, batch 64, Adam": ("digits", 64, "adam", 1e-3),
    "CNN, batch 32, SGD": ("fashion", 32, "sgd", 0.02),
    "CNN, batch 64, Adam": ("fashion", 64, "adam", 1e-3),
}


def data(name: str, args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "digits":
        digits = load_digits()
        return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    images = fashion_mnist(args.data)
    return nn.functional.avg_pool2d(images.x_train[:2000], 2), images.y_train[:2000]


def model(name: str) -> nn.Module:
    if name == "digits":
        return mlp(64, 32, 10)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def batches(rows: int, size: int, replacement: bool) -> Iterator[torch.Tensor]:
    while True:
        if replacement:
            yield torch.randint(rows, (size,))
            continue
        for part in torch.randperm(rows).split(size):
            if len(part) == size:
                yield part


class Look:
    """Norms of gradients at the present parameters; ``.grad`` is that of the last rows."""

    def __init__(self, net: nn.Module, X: torch.Tensor, y: torch.Tensor) -> None:
        self.net, self.X, self.y = net, X, y
        self.norms = RowNorms(net, net.parameters())

    def square(self, rows: torch.Tensor) -> float:
        """Return the squared norm of the mean gradient of the rows."""
        self.net.zero_grad()
        nn.functional.cross_entropy(self.net(self.X[rows]), self.y[rows]).backward()
        return sum(float((p.grad**2).sum()) for p in self.net.parameters() if p.grad is not None)

    def both(self, rows: torch.Tensor) -> tuple[float, float]:
        """Return that, and the mean squared norm of the gradients of single rows."""
        with self.norms.measuring():
            square = self.square(rows)
        return square, self.norms.square() * len(rows)

    def exact(self) -> tuple[float, float]:
        """Return the variance of a row's gradient and the squared gradient, over all rows."""
        square, rows = self.both(torch.arange(len(self.X)))
        return rows - square, square


class KungFu:
    """Moving averages with a fixed weight."""

    def __init__(self) -> None:
        self.variance = self.square = math.nan

    def observe(self, small: float, large: float, half: int) -> float:
        square = (2 * half * large - half * small) / half
        variance = (small - large) / (1 / half - 1 / (2 * half))
        if math.isnan(self.square):
            self.square, self.variance = square, variance
        self.square += 0.6 * (square - self.square)
        self.variance += 0.6 * (variance - self.variance)
        return self.variance / self.square


class AdaptDL:
    """Moving averages that are corrected for their beginning."""

    def __init__(self) -> None:
        self.variance = self.square = self.weight = 0.0

    def observe(self, small: float, large: float, half: int) -> float:
        keep = 1 - 2 / 1000
        self.weight = keep * self.weight + 1 - keep
        self.square = keep * self.square + (1 - keep) * (2 * large - small)
        self.variance = keep * self.variance + (1 - keep) * 2 * half * (small - large)
        return max(self.variance / self.weight, 1e-6) / max(self.square / self.weight, 1e-12)


def train(case: str, replacement: bool, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return exact values and estimates of one run, one entry per update."""
    name, size, kind, lr = CASES[case]
    torch.manual_seed(0)
    X, y = data(name, args)
    net = model(name)
    if kind == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    look, kungfu, adaptdl = Look(net, X, y), KungFu(), AdaptDL()
    monitor = GradientNoiseScale()
    state, out = monitor.start(), []
    for update, rows in zip(range(args.updates), batches(len(X), size, replacement), strict=False):
        variance = square = math.nan
        if update % args.exact_every == 0:
            variance, square = look.exact()
        halves = [look.square(part) for part in rows.split(size // 2)]
        large, single = look.both(rows)
        n_examples = None if replacement else len(X)
        seen = Observation(update, size, n_examples, 1.0, large, size, single)
        (ours, error, low), state = monitor.observe(seen, state)
        peers = [one.observe(sum(halves) / 2, large, size // 2) for one in (kungfu, adaptdl)]
        out.append([variance, square, ours, error, low, *peers])
        optimizer.step()  # .grad is that of the batch
    names = ("variance", "square", "ours", "error", "low", "kungfu", "adaptdl")
    return dict(zip(names, np.array(out).T.tolist(), strict=True))


def smoothed(values: np.ndarray, every: int) -> np.ndarray:
    """Return means over the window around each entry that was measured."""
    half = max(1, WINDOW // every)
    known = values[::every]
    found = np.full(len(values), math.nan)
    found[::every] = [known[max(0, k - half) : k + half + 1].mean() for k in range(len(known))]
    return found


def judged(run: dict[str, list[float]], every: int) -> dict[str, Any]:
    """Return the shares that are counted, for the exact value and for its neighborhood."""
    columns = {name: np.array(values, dtype=float) for name, values in run.items()}
    error, row = columns["error"], {}
    for truth in ("exact", "smoothed"):
        parts = [columns[name] for name in ("variance", "square")]
        if truth == "smoothed":
            parts = [smoothed(part, every) for part in parts]
        exact = parts[0] / parts[1]
        checked = ~np.isnan(exact)
        for name in ("ours", "kungfu", "adaptdl"):
            known = checked & ~np.isnan(columns[name])
            with np.errstate(invalid="ignore", divide="ignore"):
                off = np.abs(np.log(columns[name][known] / exact[known]))
            close = off < math.log(1.5)  # false for a negative estimate
            row[f"{name} close, {truth}"] = float(close.mean()) if known.any() else None
            if name == "ours" and known.any():
                inside = off < 1.96 * error[known]
                row[f"ours inside, {truth}"] = float(inside.mean())
                row[f"ours both, {truth}"] = float((close & inside).mean())
        lows = checked & ~np.isnan(columns["low"])
        row[f"low holds, {truth}"] = float((columns["low"] < exact)[lows].mean())
    unknown = np.isnan(columns["ours"])
    row["known from"] = int(np.argmin(unknown)) if not unknown.all() else None
    row["negative, kungfu"] = float((columns["kungfu"] < 0).mean())
    return row


def draw(runs: dict[str, dict[str, list[float]]], path: Any) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(13, 7))
    for axis, (title, run) in zip(axes.flat, runs.items(), strict=False):
        columns = {name: np.array(values, dtype=float) for name, values in run.items()}
        updates = np.arange(len(columns["ours"]))
        exact = columns["variance"] / columns["square"]
        measured = ~np.isnan(exact)
        for name, color in (("kungfu", "tab:orange"), ("adaptdl", "tab:green")):
            axis.plot(updates, columns[name], color=color, lw=0.6, label=name)
        axis.plot(updates[measured], exact[measured], color="black", lw=0.7, label="exact")
        ours, error = columns["ours"], columns["error"]
        axis.plot(updates, ours, color="tab:blue", label="ours")
        low, high = ours * np.exp(-1.96 * error), ours * np.exp(1.96 * error)
        axis.fill_between(updates, low, high, color="tab:blue", alpha=0.2)
        axis.set(yscale="log", ylim=(3, 3e4), title=title, xlabel="update", ylabel="noise scale")
    axes.flat[0].legend()
    figure.tight_layout()
    save_figure(figure, path)
    plt.close(figure)


def percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--updates", type=int, default=None)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    args.updates = args.updates or (120 if args.quick else 1000)
    args.exact_every = 10 if args.quick else 5
    cache, runs = Cache(args.cache), {}
    for (case, setting), replacement in product(CASES.items(), (True, False)):
        title = f"{case}, {'with replacement' if replacement else 'by epochs'}"
        key = f"{title}/{args.updates}/{args.exact_every}"
        try:
            if key not in cache:
                cache[key] = train(case, replacement, args)
        except NoDataError as error:
            console.print(f"{title}: left out. {error}")
            continue
        runs[title] = cache[key]
        console.print(f"{title}: done ({setting[0]})")
    rows = {title: judged(run, args.exact_every) for title, run in runs.items()}
    for truth in ("exact", "smoothed"):
        counted = ("ours both", "ours close", "ours inside", "low holds", "kungfu close")
        names = [f"{name}, {truth}" for name in (*counted, "adaptdl close")]
        print_table(
            f"Against the {truth} value (target: both at once in 85 %)",
            ["run", *(name.split(",")[0] for name in names), "known from", "kungfu < 0"],
            [
                [
                    title,
                    *(percent(row.get(name)) for name in names),
                    row["known from"],
                    percent(row["negative, kungfu"]),
                ]
                for title, row in rows.items()
            ],
        )
    path = output_path(args, __file__)
    drawn = {title: run for title, run in runs.items() if title.endswith("with replacement")}
    draw(drawn, path.with_suffix(".png"))
    settings = {"updates": args.updates, "exact_every": args.exact_every, "window": WINDOW}
    write(path, __file__, settings, rows=rows)


if __name__ == "__main__":
    main()
