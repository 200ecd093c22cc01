"""The words of ``accelerando plan``: its options, apart from the library they belong to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  accelerando plan --batch-size "GeoDamp(initial=128, delay=60, factor=5)" --max-batch-size 5120 \\
    --examples 50000 --epochs 200 --parameters 2750000 --seconds-per-example 0.73ms \\
    --bandwidth 10Gb/s --latency 50us --price 0.526
  accelerando plan --run updates.csv --parameters 650 --workers 1..16

updates.csv is what net.updates_frame().to_csv("updates.csv") wrote.
accelerando.cost.measure(net, X, y) finds --seconds-per-example, --overhead and --parameters."""


def add_commands(commands: Any) -> None:
    """Register ``plan``; called by the command line, which loads nothing heavy before it runs."""
    parser = commands.add_parser(
        "plan",
        help="what training will take on 1, 2, 4 … workers: hours, money, traffic",
        description="Predict updates, time, worker-hours, bytes and price of a training run for "
        "several numbers of workers, from a schedule of batch sizes or from a recorded run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("the run")
    what.add_argument(
        "--batch-size",
        metavar="POLICY",
        default="128",
        help="a number, a table from epoch to size (0:128,60:640), or a policy (default: 128)",
    )
    what.add_argument("--max-batch-size", metavar="N", type=int, help="the largest batch")
    what.add_argument("--examples", metavar="N", type=int, help="rows of the training set")
    what.add_argument("--epochs", metavar="N", type=int, help="passes over the training set")
    what.add_argument(
        "--run",
        dest="record",
        metavar="CSV",
        type=Path,
        help="a recorded run, in place of the four above",
    )
    what.add_argument(
        "--parameters", metavar="N", type=int, required=True, help="numbers that are trained"
    )
    machines = parser.add_argument_group("the machines")
    machines.add_argument(
        "--workers",
        metavar="N,N,…",
        default="1..64",
        help="most workers, one row each; 1..64 is 1, 2, 4, 8, 16, 32, 64 (default: %(default)s)",
    )
    machines.add_argument(
        "--min-workers", metavar="N", type=int, default=1, help="fewest workers (default: 1)"
    )
    machines.add_argument(
        "--examples-per-worker",
        metavar="N",
        type=int,
        default=128,
        help="rows of a batch that are worth a worker (default: %(default)s)",
    )
    machines.add_argument(
        "--seconds-per-example",
        metavar="TIME",
        help="forward and backward pass of one row, such as 0.73ms",
    )
    machines.add_argument(
        "--overhead", metavar="TIME", help="what every update takes besides (default: 0)"
    )
    machines.add_argument("--price", metavar="X", type=float, help="price of a worker for an hour")
    network = parser.add_argument_group("the network (none: it costs nothing)")
    network.add_argument("--bandwidth", metavar="RATE", help="bits per second, such as 10Gb/s")
    network.add_argument("--latency", metavar="TIME", help="such as 50us (default: 0)")
    network.add_argument(
        "--network",
        metavar="NAME",
        help="one of the AdaDamp paper's: decentralized-moderate, decentralized-high, centralized",
    )
    network.add_argument(
        "--architecture",
        choices=("all-reduce", "centralized"),
        help="how gradients meet (default: all-reduce)",
    )
    parser.add_argument("--output", metavar="PNG", type=Path, help="save a picture as well")
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from accelerando.cost._report import run

    return run(arguments)
