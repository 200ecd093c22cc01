"""Which way to communicate is fastest on a slow network?

Plain DDP, ADPSGD and DiLoCo, each with gradients or differences of parameters as they are, with 8
and 4 bits (QSGD), with the largest 2 % of the entries in two bits and error feedback, and DDP with
PowerSGD; on 2, 4 and 8 ranks at 10, 20, 100 and 1000 Mb/s, with a small ResNet (BatchNorm) and
with three convolutions (none), on CIFAR-10.

Time per update and learning per update do not depend on each other, so they are measured apart:

learning   test accuracy after each epoch, updates, and exchanges. Ranks are virtual, which computes
           what ranks compute; encoded gradients need real ones, without a limit
speed      seconds of an update, and of an exchange, between ranks in network namespaces with a
           limit on what each sends (tc tbf); also of PyTorch's own DDP and its PowerSGD hook

The seconds to an accuracy follow: updates times the time of one, and exchanges times theirs. Eight
ranks share the cores of this machine, which computes accordingly slower; compute is the same with
all ways. --cache FILE keeps what is finished, so that it can be run in pieces (--only, --ranks).
Needs root and iproute2 for the speed. Data: --data DIR with cifar10_small.npz. On two quiet cores
all of it is estimated to take two hours, one for each part; with --quick a few minutes, which says
that it runs and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from _cifar import Cifar, cifar
from _common import Cache, NoDataError, console, output_path, parser, print_table, write
from _low_bandwidth import FULL, NATIVE, QUICK, WAYS, Size, inside, learned, networks
from _namespace_cluster import found_inside, leave_properly
from _namespaces import why_not
from _training_common import epochs_to, spent_in

BANDWIDTHS = [10.0, 20.0, 100.0, 1000.0]
SHARE_OF_BEST = 0.95  # of plain DDP's accuracy is the target


def arguments() -> argparse.Namespace:
    """Read the command line."""
    made = parser(__doc__ or "")
    made.add_argument("--only", choices=("learning", "speed"), help="only one of the two parts")
    made.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    made.add_argument("--bandwidths", type=float, nargs="+", default=None, metavar="MBIT")
    made.add_argument("--models", nargs="+", default=["ResNet", "convolutions"])
    made.add_argument("--seeds", type=int, help="of the learning on the most ranks (default: 3)")
    made.add_argument("--epochs", type=int, help="of the learning")
    made.add_argument("--inside", nargs=2, metavar=("TAG", "FILE"), help=argparse.SUPPRESS)
    return made.parse_args()


def main() -> None:
    args = arguments()
    size = QUICK if args.quick else FULL
    size = size._replace(epochs=args.epochs or size.epochs)
    bandwidths = args.bandwidths or ([20.0] if args.quick else BANDWIDTHS)
    try:
        images = cifar(args.data)
    except NoDataError as error:
        sys.exit(str(error))
    images = Cifar(
        images.x_train[: size.rows], images.y_train[: size.rows],
        images.x_test[: size.test_rows], images.y_test[: size.test_rows],
    )  # fmt: skip
    if args.inside:
        leave_properly()
        tag, file = args.inside
        rows = inside(
            tag, count=args.ranks[0], models=args.models, bandwidths=bandwidths, images=images,
            size=size, cache=args.cache,
        )  # fmt: skip
        Path(file).write_text(json.dumps(rows))
        return
    if args.cache is None:
        args.cache = output_path(args, __file__).with_suffix(".cache.json")
    cache = Cache(args.cache)
    if args.only != "speed":
        learn_all(args, images, size, cache)
    if args.only != "learning":
        for ranks in args.ranks:
            time_all(args, ranks, bandwidths)
    report(args, size, bandwidths, Cache(args.cache))


def learn_all(args: argparse.Namespace, images: Cifar, size: Size, cache: Cache) -> None:
    """Train every way, with more seeds on the most ranks."""
    for name in args.models:
        for ranks in sorted(args.ranks, reverse=True):
            seeds = args.seeds or (1 if args.quick else 3)
            for seed in range(seeds if ranks == max(args.ranks) else 1):
                for way in WAYS:
                    key = learning_key(name, ranks, " × ".join(way), seed, size)
                    if key not in cache:
                        module = networks(size)[name]
                        cache[key] = learned(module, way, ranks, seed, images, size)
                    best = max(cache[key]["accuracies"])
                    console.print(f"{name}, {ranks} ranks, {' × '.join(way)}, {seed}: {best:.3f}")


def learning_key(name: str, ranks: int, way: str, seed: int, size: Size) -> str:
    return f"learning/{name}/{ranks}/{way}/{seed}/{size}"


def time_all(args: argparse.Namespace, ranks: int, bandwidths: list[float]) -> None:
    """Measure the times on this number of ranks, in namespaces."""
    reason = why_not()
    if reason is not None:
        console.print(f"{reason} Time was not measured.")
        return
    options = ["--ranks", str(ranks), "--bandwidths", *map(str, bandwidths)]
    options += ["--models", *args.models]
    options += ["--quick"] if args.quick else []
    for name in ("data", "cache", "epochs"):
        if (value := getattr(args, name)) is not None:
            options += [f"--{name}", str(value)]
    found_inside(__file__, ranks, *options)


# -- what came out ---------------------------------------------------------------------------------


def seconds_to(target: float, run: dict[str, Any], speed: dict[str, Any]) -> float | None:
    """Return the seconds until a run would have reached an accuracy at this speed."""
    epochs = epochs_to(target, run["accuracies"])
    if epochs is None:
        return None
    exchange = speed["exchange"] or 0.0
    pairs = zip(run["updates"], run["met"], strict=True)
    return spent_in(epochs, [u * speed["update"] + m * exchange for u, m in pairs])


def rows_of(
    name: str, ranks: int, bandwidth: float, size: Size, cache: Cache, seeds: int
) -> list[dict[str, Any]]:
    """Return what is known of every way on this number of ranks at one bandwidth."""
    labels = [" × ".join(way) for way in WAYS]
    runs = {}
    for label in labels:
        keys = [learning_key(name, ranks, label, seed, size) for seed in range(seeds)]
        runs[label] = [cache[key] for key in keys if key in cache]
    plain = runs["DDP × none"]
    if not plain:
        return []
    target = SHARE_OF_BEST * mean(max(run["accuracies"]) for run in plain)
    whole = mean(sum(run["bytes"]) for run in plain)
    # PyTorch's DDP learns what ours does, up to rounding.
    as_ours = {"DDP (PyTorch)": "DDP × none", "DDP + PowerSGD (PyTorch)": "DDP × PowerSGD(2)"}
    found = []
    for label in [*labels, *NATIVE]:
        key = f"{name}/{ranks}/{bandwidth:g}/{label}/{size}"
        mine = runs[as_ours.get(label, label)]
        if not mine:
            continue
        speed = cache.rows.get(key)
        times = [seconds_to(target, run, speed) for run in mine] if speed else [None]
        reached = [one for one in times if one is not None]
        all_there = len(reached) == len(times)
        best = [max(run["accuracies"]) for run in mine]
        found.append(
            {
                "model": name, "ranks": ranks, "bandwidth": bandwidth, "way": label,
                "target": target, "seeds": len(mine), "best_accuracy": mean(best),
                "deviation": float(np.std(best, ddof=1)) if len(best) > 1 else None,
                "loss": mean(run["loss"] for run in mine),
                "fewer_bytes": whole / max(1.0, mean(sum(run["bytes"]) for run in mine)),
                "update_seconds": speed and speed["update"],
                "exchange_seconds": speed and speed["exchange"],
                "seconds_to_target": mean(reached) if all_there else None,
                "processors_taken_by_others": speed and speed.get("processors_taken_by_others"),
            }
        )  # fmt: skip
    return found


def report(args: argparse.Namespace, size: Size, bandwidths: list[float], cache: Cache) -> None:
    """Print the tables and write the results."""
    seeds = args.seeds or (1 if args.quick else 3)
    rows: list[dict[str, Any]] = []
    for name in args.models:
        for ranks in args.ranks:
            for bandwidth in bandwidths:
                some = rows_of(name, ranks, bandwidth, size, cache, seeds)
                rows += some
                if some:
                    title = f"{name}, {ranks} ranks, {bandwidth:g} Mb/s"
                    print_table(
                        f"{title}: seconds to {some[0]['target']:.1%}", COLUMNS, shown(some)
                    )
    settings = {
        "quick": args.quick, **size._asdict(), "lr": LR_TEXT, "target": f"{SHARE_OF_BEST} of the "
        "best accuracy of plain DDP on as many ranks", "network": "namespaces on a bridge, tc tbf "
        "on what each rank sends", "seconds_to_target": "updates × update_seconds + exchanges × "
        "exchange_seconds",
    }  # fmt: skip
    write(output_path(args, __file__), __file__, settings, rows=rows)


LR_TEXT = "0.05, a tenth after a half and after three quarters of the epochs; momentum 0.9"
COLUMNS = [
    "", "best accuracy", "loss", "fewer bytes", "ms/update", "ms/exchange", "seconds", "faster",
]  # fmt: skip


def shown(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the rows of a table."""
    plain = rows[0]["seconds_to_target"]
    found = []
    for row in rows:
        seconds, apart = row["seconds_to_target"], row["deviation"]
        found.append(
            [
                row["way"],
                f"{row['best_accuracy']:.1%}" + (f" ± {apart:.1%}" if apart is not None else ""),
                f"{row['loss']:.3f}",
                f"{row['fewer_bytes']:.1f}",
                _number(row["update_seconds"], 1e3, 0),
                _number(row["exchange_seconds"], 1e3, 0),
                _number(seconds, 1.0, 1),
                _number(plain / seconds if plain and seconds else None, 1.0, 2),
            ]
        )
    return found


def _number(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"


if __name__ == "__main__":
    main()
