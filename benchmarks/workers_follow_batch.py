"""Do workers that follow the batch save model updates, at the same accuracy, on a real cluster?

Table 1 of the AdaDamp paper, trained instead of simulated. Five schedules multiply the batch by 5
at the epochs 60, 120 and 180 of 200 until it reaches a maximum; from there on the learning rate
falls instead, by the factor by which the batch would have grown:

maximum      batch sizes               updates of CIFAR-10's 50,000 examples in 200 epochs
128          128                       78,200
640          128, 640                  34,520
3.2k         128, 640, 3200            29,480
16k          128, 640, 3200, 16000     29,240
5.1k (*2)    256, 1280, 5120           14,960   "(*2)" begins with twice the batch, at the same rate

Here it is a small convolutional network and 50,000 examples of Fashion-MNIST, and a tenth of the
epochs: increases at 6, 12 and 18 of 20. An epoch has as many updates as in the paper, so the counts
are a tenth of the paper's to the last update (7820, 3452, 2948, 2924, 1496), and so is the ratio of
the first to the last: 5.23. The counts are asserted, and that no update has more ranks than its
batch asks for; it may have fewer until the workers have come. (--quick has too few examples for the
exact ratio, and too few updates to judge the accuracy.)

Training runs on a LocalCluster whose size follows the batch: one rank per 512 examples, at most 4
(the paper: one per 128, at most 125). On a machine with few processors more ranks save no time, so
no claim about time is made; the seconds are written down.
"""

from __future__ import annotations

import argparse
import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from distributed import Client
from torch import nn

from _cluster_common import local_cluster
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
    write,
)
from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp

PAPER_EPOCHS, PAPER_DELAY, FACTOR = 200, 60, 5
LR, MOMENTUM, DECAY = 0.05, 0.9, 5e-4
EXAMPLES_PER_WORKER = 512


class Plan(NamedTuple):
    """A schedule of Table 1."""

    name: str
    initial: int
    maximum: int
    paper_updates: int


PLANS = (
    Plan("128", 128, 128, 78_200),
    Plan("640", 128, 640, 34_520),
    Plan("3.2k", 128, 3200, 29_480),
    Plan("16k", 128, 16_000, 29_240),
    Plan("5.1k (*2)", 256, 5120, 14_960),
)
FIRST, LAST = PLANS[0], PLANS[-1]


# -- what the schedule says, written down without the library --------------------------------------


def expected_batch(plan: Plan, epoch: int, delay: float) -> int:
    """Return the batch size of an epoch, counted from 0."""
    return min(plan.initial * FACTOR ** int(epoch // delay), plan.maximum)


def expected_updates(plan: Plan, rows: int, epochs: int, delay: float) -> list[int]:
    """Return the updates of each epoch: every example once, the last batch may be short."""
    return [math.ceil(rows / expected_batch(plan, epoch, delay)) for epoch in range(epochs)]


def expected_ranks(batch: int, most: int) -> int:
    """Return how many ranks a batch asks for."""
    return int(np.clip(math.ceil(batch / EXAMPLES_PER_WORKER), 1, most))


def check_against_the_paper() -> None:
    """Compare our arithmetic with the published counts before anything is trained."""
    for plan in PLANS:
        counted = sum(expected_updates(plan, 50_000, PAPER_EPOCHS, PAPER_DELAY))
        assert counted == plan.paper_updates, (plan, counted)


# -- training --------------------------------------------------------------------------------------


def train(plan: Plan, data: Images, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one schedule once, on a cluster that begins with one worker."""
    with local_cluster(1) as client:
        net = build(plan, seed, args, client)
        net.fit(data.x_train[: args.examples].numpy(), data.y_train[: args.examples].numpy())
    updates = net.updates_frame()
    check(plan, updates, args)
    return {
        "schedule": plan.name,
        "seed": seed,
        "updates": len(updates),
        "accuracy": accuracy(net, data),
        "train_loss": float(net.history_frame()["train_loss"].iloc[-1]),
        "seconds": float(updates["seconds"].iloc[-1]),
        "ranks": _spans(updates["batch_size"].to_numpy(), updates["ranks"].to_numpy()),
    }


def build(
    plan: Plan, seed: int, args: argparse.Namespace, client: Client | None
) -> NeuralNetClassifier:
    """Return the estimator with the paper's optimizer; without a client it trains right here."""
    where: dict[str, Any] = {}
    if client is not None:
        where = {
            "client": client,
            "examples_per_worker": EXAMPLES_PER_WORKER,
            "min_workers": 1,
            "max_workers": args.workers,
        }
    return NeuralNetClassifier(
        cnn,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=MOMENTUM,
        optimizer__nesterov=True,
        optimizer__weight_decay=DECAY,
        lr=LR,
        batch_size=GeoDamp(initial=plan.initial, delay=args.delay, factor=FACTOR),
        max_batch_size=plan.maximum,
        max_epochs=args.epochs,
        train_split=None,
        random_state=seed,
        verbose=0,
        **where,
    )


def check(plan: Plan, updates: Any, args: argparse.Namespace) -> None:
    """Assert that every epoch had the updates, batches and examples that the schedule says."""
    expected = expected_updates(plan, args.examples, args.epochs, args.delay)
    counted = updates.groupby("epoch").size().tolist()
    assert counted == expected, f"{plan.name}: {counted} updates per epoch, not {expected}"
    rows = updates.groupby("epoch")["batch_size"].sum()
    assert (rows == args.examples).all(), f"{plan.name}: rows per epoch {rows.tolist()}"
    for epoch, group in updates.groupby("epoch"):
        wanted = expected_batch(plan, int(epoch) - 1, args.delay)
        most = expected_ranks(wanted, args.workers)
        assert (group["batch_size"].iloc[:-1] == min(wanted, args.examples)).all()
        # Fewer until the workers have come; never more.
        if "ranks" in group:
            assert (group["ranks"] <= most).all(), f"{plan.name}, epoch {epoch}: more than {most}"


def accuracy(net: NeuralNetClassifier, data: Images) -> float:
    """Return the test accuracy in per cent."""
    right = sum(
        int((net.predict(x.numpy()) == y.numpy()).sum())
        for x, y in zip(data.x_test.split(500), data.y_test.split(500), strict=True)
    )
    return 100 * right / len(data.y_test)


def _spans(batches: np.ndarray, ranks: np.ndarray) -> list[list[int]]:
    """Return [batch size, ranks, updates] for each stretch of updates with the same two."""
    spans: list[list[int]] = []
    # A short last batch of an epoch is no change of the schedule.
    for batch, count in zip(np.maximum.accumulate(batches), ranks, strict=True):
        if spans and spans[-1][:2] == [int(batch), int(count)]:
            spans[-1][2] += 1
        else:
            spans.append([int(batch), int(count), 1])
    return spans


# -- verdict ---------------------------------------------------------------------------------------


def noise(accuracy_: float, rows: int, seeds: int) -> float:
    """Return two standard errors of a difference between two mean accuracies, in points.

    Each accuracy is a share of `rows` examples; what the seeds add to that is not counted.
    """
    share = accuracy_ / 100
    return 200 * math.sqrt(2 * share * (1 - share) / rows / seeds)


def summarize(runs: list[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per schedule, with its accuracy against that of the constant batch."""
    rows = []
    base = [run["accuracy"] for run in runs if run["schedule"] == FIRST.name]
    first = sum(expected_updates(FIRST, args.examples, args.epochs, args.delay))
    for plan in PLANS:
        mine = [run for run in runs if run["schedule"] == plan.name]
        scores = [run["accuracy"] for run in mine]
        allowed = noise(float(np.mean(base)), 10_000, len(scores))
        below = float(np.mean(base) - np.mean(scores))
        rows.append(
            {
                "schedule": plan.name,
                "paper_updates": plan.paper_updates,
                "updates": mine[0]["updates"],
                "updates_128_over_this": first / mine[0]["updates"],
                "accuracy": float(np.mean(scores)),
                "accuracy_range": [min(scores), max(scores)],
                "points_below_128": below,
                "points_of_noise": allowed,
                # Forty updates on a twentieth of the examples are too few to judge a schedule by.
                "as_accurate": None if args.quick else below <= allowed,
                "most_ranks": max(ranks for run in mine for _, ranks, _ in run["ranks"]),
                "seconds": float(np.mean([run["seconds"] for run in mine])),
            }
        )
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    print_table(
        "Table 1 of the AdaDamp paper at reduced size (accuracy: mean over seeds, range)",
        [
            "maximum batch",
            "updates",
            "128's / this",
            "paper",
            "most ranks",
            "test accuracy",
            "below 128's",
            "noise",
            "verdict",
            "seconds",
        ],
        [
            [
                row["schedule"],
                f"{row['updates']:,}",
                f"{row['updates_128_over_this']:.2f}",
                f"{FIRST.paper_updates / row['paper_updates']:.2f}",
                row["most_ranks"],
                f"{row['accuracy']:.2f} ({row['accuracy_range'][0]:.2f}–"
                f"{row['accuracy_range'][1]:.2f})",
                f"{row['points_below_128']:+.2f}",
                f"{row['points_of_noise']:.2f}",
                {True: "met", False: "MISSED", None: None}[row["as_accurate"]],
                f"{row['seconds']:.0f}",
            ]
            for row in rows
        ],
    )


def arguments() -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--epochs", type=int, help="epochs of training (default: 20, quick: 10)")
    made.add_argument("--seeds", type=int, help="runs per schedule (default: 2, quick: 1)")
    made.add_argument("--workers", type=int, help="the most ranks (default: 4, quick: 2)")
    args = made.parse_args()
    args.epochs = args.epochs or (10 if args.quick else 20)
    args.seeds = args.seeds or (1 if args.quick else 2)
    args.workers = args.workers or (2 if args.quick else 4)
    args.examples = 2_500 if args.quick else 50_000
    # Shrunk with the epochs, so that the whole schedule is run.
    args.delay = PAPER_DELAY * args.epochs / PAPER_EPOCHS
    return args


def main() -> None:
    args = arguments()
    check_against_the_paper()
    try:
        data = fashion_mnist(args.data)
    except NoDataError as error:
        raise SystemExit(str(error)) from None
    cache = Cache(args.cache)
    runs = []
    for seed, plan in product(range(args.seeds), PLANS):
        key = f"{plan.name}/{seed}/{args.epochs}/{args.examples}/{args.workers}"
        if key not in cache:
            cache[key] = train(plan, data, seed, args)
            console.print(f"{plan.name}, seed {seed}: {cache[key]['accuracy']:.2f} %")
        runs.append(cache[key])
    rows = summarize(runs, args)
    report(rows)
    settings = {
        "quick": args.quick,
        "data": f"Fashion-MNIST, {args.examples} of 60000 examples",
        "model": f"convolutional, {count_parameters(cnn())} parameters",
        "optimizer": f"SGD, Nesterov {MOMENTUM}, lr {LR}, weight decay {DECAY}",
        "epochs": args.epochs,
        "delay": args.delay,
        "factor": FACTOR,
        "examples_per_worker": EXAMPLES_PER_WORKER,
        "max_workers": args.workers,
        "noise": "two standard errors of a difference of accuracies on 10000 test examples",
        "ranks": "[batch size, ranks, updates] of each stretch of updates",
    }
    write(output_path(args, __file__), __file__, settings, rows=rows, runs=runs)


if __name__ == "__main__":
    main()
