"""Do growing batches save model updates without costing epochs?

Two experiments of the dissertation behind accelerando (section 3.1.4, appendix B.4), with its
hyper-parameters, all trained by accelerando's estimators:

synthetic  a linear network on 10,000 examples of 100 features. Model updates and epochs until the
           test loss is within 1 % of that of the exact least-squares solution (ERM), for adaptive
           batches (AdaDamp), SGD with decaying steps, AdaGrad and gradient descent.
fashion    a small convolutional network on Fashion-MNIST. Test accuracy against updates and epochs
           for RadaDamp and GeoDamp, for their twins that lower the learning rate instead, and for
           AdaGrad.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from skorch.callbacks import Callback, LRScheduler
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from _common import (
    Cache,
    Images,
    NoDataError,
    cnn,
    console,
    count_parameters,
    fashion_mnist,
    output_path,
    parser,
    print_table,
    save_figure,
    write,
)
from accelerando import NeuralNetClassifier, NeuralNetRegressor
from accelerando.batch_size import AdaDamp, FullBatch, GeoDamp, GeoDampLR, RadaDamp, RadaDampLR

# -- (a) the linear network of section 3.1.4.1 ----------------------------------------------------

N, D, TEST = 10_000, 100, 2_000
TRAIN = N - TEST
LR = 2.5e-3
WITHIN = (0.01, 0.1)  # of the ERM test loss; the first is the criterion, the second shows the way


class Problem(NamedTuple):
    """One draw of the data, and the losses of its exact solution."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    best_train_loss: float
    best_test_loss: float


def draw_problem(seed: int) -> Problem:
    """Draw y = <w*, x> + noise with everything standard normal: d/100 is 1 here."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    y = x @ rng.normal(size=D) + rng.normal(scale=np.sqrt(D / 100), size=N)
    weights = np.linalg.lstsq(x[:TRAIN], y[:TRAIN], rcond=None)[0]
    squares = (x @ weights - y) ** 2
    x_, y_ = torch.from_numpy(x).float(), torch.from_numpy(y).float().reshape(-1, 1)
    return Problem(
        x_[:TRAIN],
        y_[:TRAIN],
        x_[TRAIN:],
        y_[TRAIN:],
        float(squares[:TRAIN].mean()),
        float(squares[TRAIN:].mean()),
    )


class LinearNetwork(nn.Sequential):
    """w1' W2 W3 x with PyTorch's own initial values."""

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(D, width, bias=False) for width in (D, D, 1)))


class Method(NamedTuple):
    """An optimizer of the comparison: settings for the estimator, and how long to watch it."""

    settings: Callable[[Problem], dict[str, Any]]
    epochs: int
    every: int  # updates between two looks at the test loss


def _decaying(problem: Problem) -> dict[str, Any]:
    schedule = LRScheduler(LambdaLR, step_every="batch", lr_lambda=lambda k: 10 / (k + 1))
    return {"batch_size": 64, "callbacks": [("decay", schedule)]}


SYNTHETIC = {
    "AdaDamp": Method(
        lambda p: {"batch_size": AdaDamp(initial=2, best_loss=p.best_train_loss, dwell=1)}, 60, 1
    ),
    "SGD": Method(_decaying, 40, 5),
    "AdaGrad": Method(
        lambda p: {"batch_size": 64, "optimizer": torch.optim.Adagrad, "lr": 0.01}, 150, 25
    ),
    "gradient descent": Method(lambda p: {"batch_size": FullBatch()}, 250, 1),
}


class TestLoss(Callback):
    """Look at the test loss every few updates."""

    def __init__(self, problem: Problem, every: int) -> None:
        self.problem, self.every = problem, every
        self.rows: list[tuple[int, float, float, int]] = []

    def on_batch_end(self, net: Any, training: bool = False, **kwargs: Any) -> None:
        run = net.position_
        if not training or run.update % self.every:
            return
        with torch.no_grad():
            errors = net.module_(self.problem.x_test) - self.problem.y_test
        loss = errors.square().mean().item()
        rows = int(net.signals()["batch_size"])
        self.rows.append((run.update, run.examples / TRAIN, loss, rows))


def run_synthetic(name: str, seed: int) -> dict[str, Any]:
    """Train once; losses are given relative to the ERM test loss."""
    problem, method = draw_problem(seed), SYNTHETIC[name]
    watch = TestLoss(problem, method.every)
    settings = {"lr": LR, "callbacks": [], **method.settings(problem)}
    settings["callbacks"] = [*settings["callbacks"], ("test_loss", watch)]
    net = NeuralNetRegressor(
        LinearNetwork,
        max_epochs=method.epochs,
        train_split=None,
        random_state=seed,
        verbose=0,
        **settings,
    )
    net.fit(problem.x_train, problem.y_train)
    updates, epochs, losses, sizes = (np.array(column) for column in zip(*watch.rows, strict=True))
    ratios = losses / problem.best_test_loss
    reached = {}
    for within in WITHIN:
        there = np.flatnonzero(ratios <= 1 + within)
        first = int(there[0]) if len(there) else None
        reached[str(within)] = {
            "updates": None if first is None else int(updates[first]),
            "epochs": None if first is None else float(epochs[first]),
        }
    return {
        "method": name,
        "seed": seed,
        "reached": reached,
        "best_ratio": float(ratios.min()),
        "curve": _thin(updates, epochs, ratios, sizes),
    }


def _thin(*columns: np.ndarray, points: int = 250) -> list[list[float]]:
    """Keep points that are dense where the curves are steep: in the beginning."""
    n = len(columns[0])
    keep = np.unique(np.geomspace(1, n, points).astype(int) - 1) if n > points else np.arange(n)
    return [[float(f"{v:.5g}") for v in column[keep]] for column in columns]


def summarize_synthetic(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and quartiles over the seeds, one row per method and criterion."""
    rows = []
    for within in WITHIN:
        for name in SYNTHETIC:
            mine = [run for run in runs if run["method"] == name]
            hits = [run["reached"][str(within)] for run in mine]
            hits = [hit for hit in hits if hit["updates"] is not None]
            row: dict[str, Any] = {"method": name, "within": within, "seeds": len(mine)}
            row["reached"] = len(hits)
            row["best_ratio"] = float(np.mean([run["best_ratio"] for run in mine]))
            for unit in ("updates", "epochs"):
                values = [hit[unit] for hit in hits]
                row[unit] = float(np.mean(values)) if values else None
                row[f"{unit}_quartiles"] = (
                    [float(q) for q in np.percentile(values, [25, 75])] if values else None
                )
            rows.append(row)
    return rows


def synthetic_verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare AdaDamp with the best of each kind: updates with GD's, epochs with SGD's.

    How far SGD and gradient descent are from each other says what "close" means here.
    """
    pairs = (
        ("updates", "AdaDamp", "gradient descent"),
        ("updates", "SGD", "gradient descent"),
        ("epochs", "AdaDamp", "SGD"),
        ("epochs", "gradient descent", "SGD"),
    )
    verdicts = []
    for within in WITHIN:
        of = {row["method"]: row for row in rows if row["within"] == within}
        for unit, one, other in pairs:
            ours, theirs = of[one][unit], of[other][unit]
            ratio = ours / theirs if ours and theirs else None
            verdicts.append({"within": within, "what": f"{unit}: {one} / {other}", "ratio": ratio})
    return verdicts


def print_synthetic(rows: list[dict[str, Any]], verdicts: list[dict[str, Any]]) -> None:
    for within in WITHIN:
        print_table(
            f"Linear network: until the test loss is within {within:.0%} of the ERM's "
            "(mean, quartiles over seeds)",
            ["method", "seeds that got there", "model updates", "epochs", "best loss / ERM's"],
            [
                [
                    row["method"],
                    f"{row['reached']} of {row['seeds']}",
                    _with_quartiles(row, "updates", ".0f"),
                    _with_quartiles(row, "epochs", ".1f"),
                    f"{row['best_ratio']:.4f}",
                ]
                for row in rows
                if row["within"] == within
            ],
        )
    for verdict in verdicts:
        ratio = "not reached" if verdict["ratio"] is None else f"{verdict['ratio']:.2f}"
        console.print(f"  within {verdict['within']:.0%}, {verdict['what']}: {ratio}")


def _with_quartiles(row: dict[str, Any], unit: str, form: str) -> str | None:
    if row[unit] is None:
        return None
    low, high = row[f"{unit}_quartiles"]
    return f"{row[unit]:{form}} ({low:{form}}–{high:{form}})"


def draw_synthetic(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the three panels of Figure 3.2: mean over seeds, quartiles shaded."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8))
    for number, name in enumerate(SYNTHETIC):
        curves = [np.array(run["curve"]) for run in runs if run["method"] == name]
        color = f"C{number}"
        for axis, x_row, y_row in ((axes[0], 0, 2), (axes[1], 1, 2), (axes[2], 0, 3)):
            first = max(curve[x_row, 0] for curve in curves)
            last = min(curve[x_row, -1] for curve in curves)
            grid = np.geomspace(first, last, 200)
            values = np.array([np.interp(grid, curve[x_row], curve[y_row]) for curve in curves])
            axis.plot(grid, values.mean(axis=0), color=color, label=name)
            low, high = np.percentile(values, [25, 75], axis=0)
            axis.fill_between(grid, low, high, color=color, alpha=0.2, linewidth=0)
    for axis, label in zip(axes, ("model updates", "epochs", "model updates"), strict=True):
        axis.set(xlabel=label, xscale="log", yscale="log")
    axes[1].set_xlim(left=1e-2)
    for axis in axes[:2]:
        axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
        axis.set(ylabel="test loss / test loss of the ERM")
    axes[2].set(ylabel="batch size")
    axes[1].legend()
    figure.suptitle("Linear network (dissertation, section 3.1.4.1)")
    figure.tight_layout()
    save_figure(figure, path)
    plt.close(figure)


# -- (b) Fashion-MNIST, section 3.1.4.2 -----------------------------------------------------------

ORIGINAL_EPOCHS, ORIGINAL_DELAY, FACTOR = 200, 10, 1.219231
INITIAL, LARGEST = 256, 1024
SMOOTH = 3  # epochs: one look at the test accuracy is off by half a point either way
SLACK = 0.2  # points of accuracy below the twin's last that count as reaching it
TWINS = {"RadaDamp": "RadaDampLR", "GeoDamp": "GeoDampLR (SGD)"}
FASHION = ("RadaDamp", "RadaDampLR", "GeoDamp", "GeoDampLR (SGD)", "AdaGrad")


class RandomFlip(nn.Module):
    """Mirror each training image with probability 1/2: PyTorch's transform, a batch at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x)


def flipping_cnn() -> nn.Module:
    """Return the network behind the augmentation, so that every optimizer gets the same."""
    return cnn(RandomFlip())


def test_accuracy(net: Any, data: Images) -> tuple[float, float]:
    """Return test accuracy in per cent and test loss."""
    net.module_.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for x, y in zip(data.x_test.split(500), data.y_test.split(500), strict=True):
            logits = net.module_(x)
            right += int((logits.argmax(1) == y).sum())
            loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
    rows = len(data.y_test)
    return 100 * right / rows, loss / rows


def fashion_policy(name: str, delay: float) -> dict[str, Any]:
    """Return the estimator's settings for one of the five optimizers of appendix B.4.2."""
    if name == "AdaGrad":
        return {"batch_size": INITIAL, "optimizer": torch.optim.Adagrad}
    policies = {
        "RadaDamp": RadaDamp(INITIAL, memory=0.999, regularization=1e-3, dwell=1),
        "RadaDampLR": RadaDampLR(INITIAL, memory=0.999, regularization=1e-3, dwell=1),
        "GeoDamp": GeoDamp(INITIAL, delay=delay, factor=FACTOR),
        "GeoDampLR (SGD)": GeoDampLR(INITIAL, delay=delay, factor=FACTOR),
    }
    return {
        "batch_size": policies[name],
        "max_batch_size": LARGEST,
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": 0.9,
        "optimizer__nesterov": True,
    }


def run_fashion(
    name: str, data: Images, args: argparse.Namespace, cache: Cache, key: str
) -> dict[str, Any] | None:
    """Train one optimizer epoch by epoch and return its curves, one value per epoch.

    With a cache, the state after each epoch is saved next to it: a run that was stopped, or that
    has used up ``--minutes`` (then None is returned), continues where it was.
    """
    net = NeuralNetClassifier(
        flipping_cnn,
        criterion=nn.CrossEntropyLoss,
        lr=0.005,
        optimizer__weight_decay=0.003,
        max_epochs=1,
        train_split=None,
        random_state=0,
        verbose=0,
        **fashion_policy(name, scaled_delay(args.epochs)),
    )
    state = None if cache.path is None else cache.path.with_suffix(f".{FASHION.index(name)}.pt")
    looks: list[tuple[float, float]] = []
    if state is not None and state.exists() and f"{key}/looks" in cache:
        looks = cache[f"{key}/looks"]
        net.load_state(state)
    x, y = data.x_train[: args.examples], data.y_train[: args.examples]
    began = time.monotonic()
    while len(looks) < args.epochs:
        if args.minutes and time.monotonic() - began > 60 * args.minutes:
            return None
        net.partial_fit(x, y)
        looks.append(test_accuracy(net, data))
        if state is not None:
            net.save_state(state)
            cache[f"{key}/looks"] = looks
    history = net.history_frame()
    return {
        "method": name,
        "seed": 0,
        "updates": history["updates"].tolist(),
        "accuracy": [accuracy for accuracy, _ in looks],
        "test_loss": [loss for _, loss in looks],
        "train_loss": history["train_loss"].tolist(),
        "batch_size": history["batch_size"].tolist(),
        "lr": history["lr"].tolist(),
        "seconds": float(history["seconds"].iloc[-1]),
    }


def scaled_delay(epochs: int) -> float:
    """Shrink GeoDamp's delay with the budget, so that its whole schedule is run."""
    return ORIGINAL_DELAY * epochs / ORIGINAL_EPOCHS


def smoothed(accuracy: list[float]) -> list[float]:
    """Return the mean over the last :data:`SMOOTH` epochs, for each epoch."""
    return [float(np.mean(accuracy[max(0, i - SMOOTH) : i])) for i in range(1, len(accuracy) + 1)]


def first_reach(run: dict[str, Any], target: float) -> tuple[int, int] | None:
    """Return (epoch, updates) at which the smoothed accuracy first is at least `target`."""
    for epoch, accuracy in enumerate(smoothed(run["accuracy"]), start=1):
        if accuracy >= target:
            return epoch, run["updates"][epoch - 1]
    return None


def summarize_fashion(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per run, with what it takes to reach the accuracy of its LR twin.

    The accuracy to reach is the twin's at its end, less :data:`SLACK` points; accuracies are means
    over the last :data:`SMOOTH` epochs.
    """
    rows = []
    for run in runs:
        twin_name = TWINS.get(run["method"])
        twin = next(
            (r for r in runs if r["method"] == twin_name and r["seed"] == run["seed"]), None
        )
        base = twin or (run if run["method"] in TWINS.values() else None)
        target = None if base is None else smoothed(base["accuracy"])[-1] - SLACK
        reached = None if target is None else first_reach(run, target)
        row = {
            "method": run["method"],
            "seed": run["seed"],
            "final_accuracy": smoothed(run["accuracy"])[-1],
            "last_accuracy": run["accuracy"][-1],
            "best_accuracy": max(run["accuracy"]),
            "updates": run["updates"][-1],
            "last_batch_size": run["batch_size"][-1],
            "last_lr": run["lr"][-1],
            "seconds": run["seconds"],
            "target_accuracy": target,
            "epochs_to_target": reached[0] if reached else None,
            "updates_to_target": reached[1] if reached else None,
        }
        if twin is not None:
            twin_reached = first_reach(twin, target)
            row["updates_ratio_at_target"] = (
                reached[1] / twin_reached[1] if reached and twin_reached else None
            )
            row["epochs_ratio_at_target"] = (
                reached[0] / twin_reached[0] if reached and twin_reached else None
            )
            row["updates_ratio_to_whole_twin"] = (
                reached[1] / twin["updates"][-1] if reached else None
            )
            row["updates_ratio_whole_run"] = run["updates"][-1] / twin["updates"][-1]
        rows.append(row)
    return rows


def print_fashion(rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    print_table(
        f"Fashion-MNIST, CNN of appendix B.4.2, {settings['examples']:,} examples, "
        f"{settings['epochs']} epochs (original: {ORIGINAL_EPOCHS}), GeoDamp's delay "
        f"{settings['geodamp_delay']:g} epochs (original: {ORIGINAL_DELAY})",
        [
            "method",
            "final %",
            "best %",
            "updates",
            "last batch",
            "last lr",
            "accuracy to reach",
            "epochs to it",
            "updates to it",
            "updates / twin's, to it",
            "updates / twin's, whole run",
            "minutes",
        ],
        [
            [
                row["method"],
                f"{row['final_accuracy']:.2f}",
                f"{row['best_accuracy']:.2f}",
                row["updates"],
                row["last_batch_size"],
                f"{row['last_lr']:.2g}",
                _number(row["target_accuracy"]),
                row["epochs_to_target"],
                row["updates_to_target"],
                _number(row.get("updates_ratio_at_target")),
                _number(row.get("updates_ratio_whole_run")),
                f"{row['seconds'] / 60:.1f}",
            ]
            for row in rows
        ],
    )
    console.print(
        f"  Final accuracy: mean over the last {SMOOTH} epochs. The accuracy to reach, by the mean "
        f"over {SMOOTH} epochs as well, is the LR twin's final accuracy less {SLACK} points."
    )
    for row in rows:
        if row["method"] not in TWINS or "updates_ratio_at_target" not in row:
            continue
        ratio, epochs = row["updates_ratio_at_target"], row["epochs_ratio_at_target"]
        if ratio is None:
            verdict = "MISSED: does not reach the accuracy of its twin in this budget"
        else:
            word = "met" if ratio <= 0.5 else "MISSED"
            verdict = f"{word}: {ratio:.2f} of its twin's updates (target: 0.5 at most), "
            verdict += f"{epochs:.2f} of its epochs (target: about 1)"
        console.print(f"  {row['method']}: {verdict}")


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def draw_fashion(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against updates and epochs (Figure 3.3), batch size and learning rate."""
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.8))
    for run in runs:
        color = f"C{FASHION.index(run['method'])}"
        style = {"color": color, "linestyle": "--" if run["method"] in TWINS.values() else "-"}
        epochs = np.arange(1, len(run["updates"]) + 1)
        axes[0].plot(run["updates"], run["accuracy"], label=run["method"], **style)
        axes[1].plot(epochs, run["accuracy"], **style)
        axes[2].plot(run["updates"], run["batch_size"], **style)
        axes[3].plot(epochs, run["lr"], **style)
    lowest = min(np.percentile(run["accuracy"], 10) for run in runs)
    for axis, label in ((axes[0], "model updates"), (axes[1], "epochs")):
        axis.set(xlabel=label, ylabel="test accuracy (%)", ylim=(np.floor(lowest), None))
    axes[0].legend(fontsize="small", loc="lower right")
    sizes = [INITIAL, 2 * INITIAL, LARGEST]
    axes[2].set(xlabel="model updates", ylabel="batch size", yscale="log")
    axes[2].set_yticks(sizes, labels=[str(size) for size in sizes])
    axes[2].minorticks_off()
    axes[3].set(xlabel="epochs", ylabel="learning rate", yscale="log")
    figure.suptitle("Fashion-MNIST (dissertation, section 3.1.4.2)")
    figure.tight_layout()
    save_figure(figure, path)
    plt.close(figure)


# -- both -----------------------------------------------------------------------------------------


def synthetic_part(args: argparse.Namespace, cache: Cache, folder: Path) -> dict[str, Any]:
    runs = []
    for seed in range(args.seeds):
        for name in SYNTHETIC:
            key = f"synthetic/{name}/{seed}"
            if key not in cache:
                cache[key] = run_synthetic(name, seed)
            runs.append(cache[key])
    rows = summarize_synthetic(runs)
    verdicts = synthetic_verdict(rows)
    print_synthetic(rows, verdicts)
    draw_synthetic(runs, folder / "batch_growth_synthetic.png")
    settings = {
        "train": TRAIN,
        "test": TEST,
        "features": D,
        "noise": "standard normal: variance d/100 = 1",
        "loss": "mean squared error",
        "lr": LR,
        "AdaDamp": "initial 2, exact training loss before each update, best_loss = ERM's; the "
        "passes that measure the loss are not counted as epochs (as in the original)",
        "SGD": "batch 64, lr 10 * 2.5e-3 / k at update k = 1, 2, ...",
        "AdaGrad": "batch 64, lr 0.01",
        "gradient descent": "all 8000 training examples in each update",
        "epochs_watched": {name: method.epochs for name, method in SYNTHETIC.items()},
        "updates_between_looks": {name: method.every for name, method in SYNTHETIC.items()},
        "seeds": args.seeds,
    }
    per_seed = [{key: run[key] for key in ("method", "seed", "reached")} for run in runs]
    return {"settings": settings, "rows": rows, "verdicts": verdicts, "runs": per_seed}


def fashion_part(
    args: argparse.Namespace, cache: Cache, folder: Path, data: Images
) -> dict[str, Any]:
    runs = []
    for name in args.only or FASHION:
        key = f"fashion/{name}/{args.epochs}/{args.examples}/0"
        if key not in cache:
            done = run_fashion(name, data, args, cache, key)
            if done is None:
                raise SystemExit(f"{name} is not finished: the same command continues it.")
            cache[key] = done
            console.print(
                f"  {name}: {done['accuracy'][-1]:.2f} % after {done['updates'][-1]} updates, "
                f"{done['seconds']:.0f} s"
            )
        runs.append(cache[key])
    rows = summarize_fashion(runs)
    settings = {
        "examples": args.examples,
        "epochs": args.epochs,
        "original_epochs": ORIGINAL_EPOCHS,
        "parameters": count_parameters(cnn()),
        "lr": 0.005,
        "weight_decay": 0.003,
        "momentum": "0.9, Nesterov (not for AdaGrad)",
        "batch_size": {"initial": INITIAL, "max": LARGEST},
        "geodamp_factor": FACTOR,
        "geodamp_delay": scaled_delay(args.epochs),
        "geodamp_delay_rule": "10 epochs of 200, scaled by epochs / 200",
        "radadamp": "memory 0.999, regularization 1e-3, dwell 1 (not scaled)",
        "augmentation": "each training image mirrored with probability 1/2",
        "target": f"final accuracy of the LR twin less {SLACK} points; accuracy is looked at after "
        f"each epoch, and reached where the mean over the last {SMOOTH} epochs is",
        "seeds": 1,
    }
    print_fashion(rows, settings)
    draw_fashion(runs, folder / "batch_growth_fashion.png")
    return {"settings": settings, "rows": rows, "runs": runs}


def arguments() -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--part", choices=("synthetic", "fashion", "both"), default="both")
    made.add_argument("--seeds", type=int, help="runs of the synthetic part (default: 10)")
    made.add_argument("--epochs", type=int, help="epochs of the fashion part (default: 25)")
    made.add_argument("--examples", type=int, help="training images (default: all 60,000)")
    made.add_argument(
        "--only",
        nargs="+",
        choices=FASHION,
        metavar="NAME",
        help="some optimizers of the fashion part; with --cache, a long run in pieces",
    )
    made.add_argument(
        "--minutes",
        type=float,
        help="stop a run of the fashion part after this time; with --cache, continue another time",
    )
    args = made.parse_args()
    if args.minutes and args.cache is None:
        made.error("--minutes needs --cache, where the rest of the run finds its beginning")
    usual = (2, 4, 6_000) if args.quick else (10, 25, 60_000)
    args.seeds = args.seeds or usual[0]
    args.epochs = args.epochs or usual[1]
    args.examples = args.examples or usual[2]
    return args


def main() -> None:
    args = arguments()
    output = output_path(args, __file__)
    cache = Cache(args.cache)
    results: dict[str, Any] = {}
    data = None
    if args.part != "synthetic":
        try:
            data = fashion_mnist(args.data)
        except NoDataError as error:
            # A quick run is a check of the benchmark itself and continues with what there is.
            if args.part == "fashion" or not args.quick:
                raise SystemExit(str(error)) from None
            console.print(f"{error} The Fashion-MNIST part is left out.")
            results["fashion"] = {"left_out": str(error)}
    if args.part != "fashion":
        results["synthetic"] = synthetic_part(args, cache, output.parent)
    if data is not None:
        results["fashion"] = fashion_part(args, cache, output.parent, data)
    settings = {"quick": args.quick, "part": args.part}
    write(output, __file__, settings, **results)


if __name__ == "__main__":
    main()
