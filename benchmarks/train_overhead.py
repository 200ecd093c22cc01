"""What does training through an estimator cost over a loop written by hand?

Seconds per epoch of the same model, optimizer and batch size, trained by

hand         a PyTorch loop that gathers batches from tensors
accelerando  NeuralNetClassifier with its defaults
skorch       NeuralNetClassifier with its defaults (DataLoader), shuffled
accelerate   HF Accelerate's prepare() around a DataLoader, as its documentation has it

The four take turns in one process, in an order shuffled anew each round, and are compared round by
round, so that slow drifts of the machine meet them alike. A round during which other processes
took more than a twentieth of a processor from the threads that train is repeated, for a while.
Building models, nets and loaders is not timed; whole epochs are, as a user would run them.

A second table has the cost of converting inputs: the estimator trains on the digits as float64,
int32, a DataFrame, and with labels that are strings, compared with float32 and integers. Inputs are
converted once per fit, and each timed run is one fit. The target is one percent, so this table has
more rounds and an interval for each median. It is written to ``train_overhead_inputs.json``.
``--only`` measures one of the two tables.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import skorch
import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelerando
from _common import (
    Cache,
    NoDataError,
    cnn,
    console,
    count_parameters,
    fashion_mnist,
    mlp,
    output_path,
    parser,
    print_table,
    write,
)

LR, MOMENTUM = 0.01, 0.9
BATCHES = (64, 256, 1024, 4096)
HAND = "hand"
DISTURBED = 0.05  # processors taken away by others, above which a round does not count

PLAIN = "float32"  # arrays that are trained on as they are
INPUTS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]] = {
    PLAIN: lambda x, y: (x, y),
    "float64": lambda x, y: (x.astype("float64"), y),
    "int32": lambda x, y: ((16 * x).astype("int32"), y),
    "DataFrame": lambda x, y: (pd.DataFrame(x.astype("float64")), y),
    "string labels": lambda x, y: (x, np.array([f"digit {number}" for number in y])),
    "float64, string labels": lambda x, y: (x.astype("float64"), y.astype(str)),
}
MOST_FOR_INPUTS = 1.01  # of a ratio to float32
SIGN_QUANTILE = 1.96  # of the normal distribution: 95 % between the order statistics below

Runner = Callable[[], None]  # trains `epochs` epochs


class Case(NamedTuple):
    """A data set and a model."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    model: Callable[[], nn.Module]


# -- the four ways to train -----------------------------------------------------------------------


def by_hand(case: Case, batch: int, epochs: int) -> Runner:
    model, optimizer = _model_and_optimizer(case)
    x, y, n = case.x, case.y, len(case.x)

    def run() -> None:
        for _ in range(epochs):
            order = torch.randperm(n)
            total = 0.0
            for start in range(0, n, batch):
                rows = order[start : start + batch]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)

    return run


def by_accelerando(case: Case, batch: int, epochs: int, kind: str = PLAIN) -> Runner:
    net = accelerando.NeuralNetClassifier(
        case.model, random_state=0, **_skorch_settings(batch, epochs)
    ).initialize()
    x, y = INPUTS[kind](case.x.numpy(), case.y.numpy())
    return lambda: net.partial_fit(x, y)


def by_skorch(case: Case, batch: int, epochs: int) -> Runner:
    torch.manual_seed(0)
    net = skorch.NeuralNetClassifier(
        case.model, iterator_train__shuffle=True, **_skorch_settings(batch, epochs)
    ).initialize()
    x, y = case.x.numpy(), case.y.numpy()
    return lambda: net.partial_fit(x, y)


def by_accelerate(case: Case, batch: int, epochs: int) -> Runner:
    model, optimizer = _model_and_optimizer(case)
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=batch, shuffle=True)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def run() -> None:
        model.train()
        for _ in range(epochs):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                total += loss.item() * len(x)

    return run


WAYS = {
    HAND: by_hand,
    "accelerando": by_accelerando,
    "skorch": by_skorch,
    "accelerate": by_accelerate,
}
WAYS_OF_INPUTS = {kind: functools.partial(by_accelerando, kind=kind) for kind in INPUTS}


def _model_and_optimizer(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = case.model()
    return model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)


def _skorch_settings(batch: int, epochs: int) -> dict[str, Any]:
    return {
        "criterion": nn.CrossEntropyLoss,
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": MOMENTUM,
        "lr": LR,
        "batch_size": batch,
        "max_epochs": epochs,
        "train_split": None,
        "verbose": 0,
    }


# -- timing ---------------------------------------------------------------------------------------


def measure(
    case: Case,
    batch: int,
    threads: int,
    rounds: int,
    least_seconds: float,
    patience: float,
    ways: Mapping[str, Callable[[Case, int, int], Runner]] = WAYS,
) -> dict[str, Any]:
    """Let the ways take turns and return seconds per epoch and ratios to the first way's.

    If there were not enough quiet rounds after `patience` seconds, the least disturbed ones of
    those tried have to do; the row tells how disturbed they were.
    """
    torch.set_num_threads(threads)
    epochs = _epochs_for(case, batch, least_seconds)
    runners = {name: way(case, batch, epochs) for name, way in ways.items()}
    order = list(runners)
    shuffle = random.Random(0).shuffle
    for name in order:  # warms up: allocator, caches, what is chosen in the first updates
        runners[name]()
    tried: list[tuple[float, dict[str, float]]] = []
    began = time.monotonic()
    while True:
        shuffle(order)
        others = OtherLoad(threads)
        times = {name: _seconds(runners[name]) / epochs for name in order}
        tried.append((others.taken(), times))
        quiet = sum(taken <= DISTURBED for taken, _ in tried)
        late = time.monotonic() - began > patience
        if quiet == rounds or (late and len(tried) >= rounds):
            break
    kept = sorted(tried, key=lambda one: one[0])[:rounds]
    seconds = {name: [times[name] for _, times in kept] for name in runners}
    hand = np.array(seconds[next(iter(ways))])
    row: dict[str, Any] = {
        "case": case.name,
        "batch_size": batch,
        "threads": threads,
        "rows": len(case.x),
        "parameters": count_parameters(case.model()),
        "epochs_per_run": epochs,
        "rounds": rounds,
        "rounds_tried": len(tried),
        "processors_taken": [taken for taken, _ in kept],
        "seconds": seconds,
        "best_seconds": {name: min(times) for name, times in seconds.items()},
    }
    for name in runners:
        ratios = np.array(seconds[name]) / hand
        row[f"ratio_{name}"] = float(np.median(ratios))
        row[f"ratio_{name}_range"] = [float(ratios.min()), float(ratios.max())]
        row[f"ratio_{name}_interval"] = median_interval(ratios)
    return row


def median_interval(ratios: np.ndarray) -> list[float]:
    """Return a 95 % interval of the median: the order statistics of the sign test."""
    ordered, n = np.sort(ratios), len(ratios)
    below = max(0, math.floor((n - SIGN_QUANTILE * math.sqrt(n)) / 2))
    return [float(ordered[below]), float(ordered[n - 1 - below])]


class OtherLoad:
    """How many of our processors other processes have taken since this was made.

    Two threads that wait for each other become many times slower when a third process takes one of
    their processors, and not by the same factor for each way to train: such rounds tell nothing.
    """

    def __init__(self, threads: int) -> None:
        self.spare = (os.cpu_count() or threads) - threads
        self.before = _processor_seconds()
        self.began = time.perf_counter()

    def taken(self) -> float:
        """Return the processors that others used beyond those we leave idle; 0 if not known."""
        busy, own = (now - b for now, b in zip(_processor_seconds(), self.before, strict=True))
        others = (busy - own) / (time.perf_counter() - self.began)
        return max(0.0, others - self.spare)


def _processor_seconds() -> tuple[float, float]:
    """Return the seconds that all processors were busy, and those of this process."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0.0, 0.0
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), time.process_time()


def _epochs_for(case: Case, batch: int, least_seconds: float) -> int:
    """Return how many epochs make one timed run of the hand-written loop long enough."""
    run = by_hand(case, batch, 1)
    run()
    tried: list[float] = []
    while len(tried) < 2 or sum(tried) < least_seconds:  # one disturbed epoch must not decide
        tried.append(_seconds(run))
    return max(1, math.ceil(least_seconds / min(tried)))


def _seconds(run: Runner) -> float:
    # Garbage of one way must not be collected on the time of the next.
    gc.collect()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


# -- verdict --------------------------------------------------------------------------------------


def most_allowed(case: str, batch: int) -> float:
    """Return the target for accelerando's ratio to the hand-written loop."""
    if case.endswith("cnn") and batch >= 1024:
        return 0.6
    return 1.15 if batch < 256 else 1.05


def verdict(row: dict[str, Any]) -> dict[str, Any]:
    """Say for one row which targets are met."""
    ours, allowed = row["ratio_accelerando"], most_allowed(row["case"], row["batch_size"])
    others = {name: row[f"ratio_{name}"] for name in ("skorch", "accelerate")}
    return {
        "case": row["case"],
        "batch_size": row["batch_size"],
        "threads": row["threads"],
        "allowed": allowed,
        "ratio": ours,
        "within": ours <= allowed,
        **{f"ahead_of_{name}": ours < ratio for name, ratio in others.items()},
    }


def report(rows: list[dict[str, Any]], verdicts: list[dict[str, Any]]) -> None:
    print_table(
        "Seconds per epoch (best round), and ratio to the hand-written loop "
        "(median over rounds, range)",
        [
            "case",
            "threads",
            "batch",
            "hand",
            "accelerando",
            "skorch",
            "accelerate",
            "accelerando / hand",
            "skorch / hand",
            "accelerate / hand",
            "target",
            "verdict",
            "taken by others",
        ],
        [
            [
                row["case"],
                row["threads"],
                row["batch_size"],
                *(f"{row['best_seconds'][name]:.3g}" for name in WAYS),
                _ratio(row, "accelerando"),
                _ratio(row, "skorch"),
                _ratio(row, "accelerate"),
                f"≤ {judged['allowed']}",
                _words(judged),
                f"{np.median(row['processors_taken']):.2f}",
            ]
            for row, judged in zip(rows, verdicts, strict=True)
        ],
    )


def report_inputs(rows: list[dict[str, Any]]) -> None:
    others = [kind for kind in INPUTS if kind != PLAIN]
    print_table(
        "Inputs that are converted: ratio to float32 (median over rounds, 95 % interval)",
        ["case", "threads", "batch", "epochs per fit", *others, "target", "verdict"],
        [
            [
                row["case"],
                row["threads"],
                row["batch_size"],
                row["epochs_per_run"],
                *(_ratio(row, kind, "interval") for kind in others),
                f"≤ {MOST_FOR_INPUTS}",
                inputs_verdict(row),
            ]
            for row in rows
        ],
    )


def inputs_verdict(row: dict[str, Any]) -> str:
    """Say whether any kind of input is slower than the target allows, and if that is certain."""
    kinds = [kind for kind in INPUTS if kind != PLAIN]
    if any(row[f"ratio_{kind}_interval"][0] > MOST_FOR_INPUTS for kind in kinds):
        return "MISSED"
    if all(row[f"ratio_{kind}_interval"][1] <= MOST_FOR_INPUTS for kind in kinds):
        return "met"
    medians = all(row[f"ratio_{kind}"] <= MOST_FOR_INPUTS for kind in kinds)
    return "met by medians, not certain" if medians else "missed by medians, not certain"


def _ratio(row: dict[str, Any], name: str, spread: str = "range") -> str:
    low, high = row[f"ratio_{name}_{spread}"]
    digits = 2 if spread == "range" else 3
    return f"{row[f'ratio_{name}']:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _words(judged: dict[str, Any]) -> str:
    misses = [] if judged["within"] else ["MISSED"]
    misses += [f"behind {o}" for o in ("skorch", "accelerate") if not judged[f"ahead_of_{o}"]]
    return ", ".join(misses) or "met"


# -- data -----------------------------------------------------------------------------------------


def make_cases(args: argparse.Namespace) -> tuple[list[Case], str]:
    """Return the cases, and where the images come from."""
    digits, classes = load_digits(return_X_y=True)
    small = torch.from_numpy(digits.astype(np.float32) / 16), torch.from_numpy(classes)
    first = Case("digits-mlp", *small, lambda: mlp(64, 288, 272, 10))
    if args.only == "inputs":
        return [first], ""
    try:
        images = fashion_mnist(args.data)
        x, y, source = images.x_train, images.y_train, "Fashion-MNIST"
    except NoDataError as error:
        if args.data is not None:
            raise SystemExit(str(error)) from None
        # How long an epoch takes does not depend on what is in the pictures.
        source = "random images of Fashion-MNIST's size"
        console.print(f"{error} Timing {source} instead.")
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(20_480, 1, 28, 28, generator=generator)
        y = torch.randint(10, (20_480,), generator=generator)
    large, fewer = (8_192, 4_096) if args.quick else (20_480, 8_192)
    cases = [
        first,
        Case("fashion-mlp", x[:large].clone(), y[:large].clone(), lambda: mlp(784, 128, 64, 10)),
        Case("fashion-cnn", x[:fewer].clone(), y[:fewer].clone(), cnn),
    ]
    return [case for case in cases if not args.case or case.name in args.case], source


def arguments() -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--rounds", type=int, help="timed rounds (default: 5, quick: 3)")
    made.add_argument(
        "--input-rounds", type=int, help="timed rounds of the second table (default: 25, quick: 3)"
    )
    made.add_argument("--only", choices=("ways", "inputs"), help="measure one table")
    made.add_argument(
        "--case",
        nargs="+",
        choices=("digits-mlp", "fashion-mlp", "fashion-cnn"),
        help="some cases; with --cache, a long run in pieces",
    )
    made.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[torch.get_num_threads()],
        help="PyTorch's threads (default: as many as it takes by itself)",
    )
    made.add_argument(
        "--patience",
        type=float,
        help="seconds to wait for quiet rounds in each case (default: 45, quick: 5)",
    )
    args = made.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.input_rounds = args.input_rounds or (3 if args.quick else 25)
    args.patience = args.patience or (5 if args.quick else 45)
    return args


def main() -> None:
    args = arguments()
    cache = Cache(args.cache)
    cases, source = make_cases(args)
    batches = (64, 1024) if args.quick else BATCHES
    least = 0.15 if args.quick else 0.3

    def rows_of(
        prefix: str, chosen: list[Case], rounds: int, ways: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        rows = []
        for case, threads, batch in itertools.product(chosen, args.threads, batches):
            key = f"{prefix}{case.name}/{threads}/{batch}"
            if key not in cache:
                cache[key] = measure(case, batch, threads, rounds, least, args.patience, ways)
            rows.append(cache[key])
        return rows

    settings = {
        "quick": args.quick,
        "optimizer": f"SGD, lr {LR}, momentum {MOMENTUM}",
        "least_seconds_per_run": least,
        "digits": "1797 rows: batch 4096 is one update with all of them",
        "processors_taken": "by other processes from the training threads, for each round kept",
        "timed": "whole epochs of an initialized model; one warm-up round is left out",
        "verbose": "0 for accelerando and skorch",
    }
    output = output_path(args, __file__)
    if args.only != "inputs":
        rows = rows_of("", cases, args.rounds, WAYS)
        verdicts = [verdict(row) for row in rows]
        report(rows, verdicts)
        dtype = "float32; NumPy arrays to the estimators, tensors to the loops"
        more = {"rounds": args.rounds, "images": source, "dtype": dtype}
        write(output, __file__, settings | more, rows=rows, verdicts=verdicts)
    if args.only != "ways":
        digits = [case for case in cases if case.name == "digits-mlp"]
        rows = rows_of("inputs/", digits, args.input_rounds, WAYS_OF_INPUTS)
        report_inputs(rows)
        more = {"rounds": args.input_rounds, "first": PLAIN, "target": MOST_FOR_INPUTS}
        write(output.with_stem(f"{output.stem}_inputs"), __file__, settings | more, rows=rows)


if __name__ == "__main__":
    main()
