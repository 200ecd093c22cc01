"""``accelerando plan``: its options, and how they become a plan, a table and a figure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerando._extras import require
from accelerando._files import check_output

if TYPE_CHECKING:
    from accelerando.cost import Network, Plan

EXAMPLES = """\
examples:
  accelerando plan --batch-size "GeoDamp(initial=128, delay=60, factor=5)" --max-batch-size 5120 \\
    --examples 50000 --epochs 200 --parameters 2750000 --seconds-per-example 0.73ms \\
    --bandwidth 10Gb/s --latency 50us --price 0.526
  accelerando plan --run updates.csv --parameters 650 --workers 1..16

net.updates_frame().to_csv("updates.csv") writes updates.csv.
accelerando.cost.measure(net, X, y) measures --seconds-per-example, --overhead and --parameters."""


def add_commands(commands: Any) -> None:
    """Register ``plan``. The command line calls it, so it imports nothing heavy."""
    parser = commands.add_parser(
        "plan",
        help="predict time, price and traffic of training on 1, 2, 4 … workers",
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
        help="a number, a table from epoch to size (0:128,60:640), or a policy",
    )
    what.add_argument(
        "--max-batch-size", metavar="N", type=int, help="the largest batch (default: no limit)"
    )
    what.add_argument("--examples", metavar="N", type=int, help="rows of the training set")
    what.add_argument("--epochs", metavar="N", type=int, help="passes over the training set")
    what.add_argument(
        "--run",
        dest="record",
        metavar="CSV",
        type=Path,
        help="a recorded run, instead of the four options above",
    )
    what.add_argument(
        "--parameters", metavar="N", type=int, required=True, help="number of trained numbers"
    )
    machines = parser.add_argument_group("the machines")
    machines.add_argument(
        "--workers",
        metavar="N,N,…",
        default="1..64",
        help="largest numbers of workers, one row each; 1..64 is 1, 2, 4, ..., 64",
    )
    machines.add_argument(
        "--min-workers",
        metavar="N",
        type=int,
        default=1,
        help="smallest number of workers",
    )
    machines.add_argument(
        "--examples-per-worker",
        metavar="N",
        type=int,
        default=128,
        help="rows of a batch per worker",
    )
    machines.add_argument(
        "--seconds-per-example",
        metavar="TIME",
        help="duration of forward and backward pass of one row, such as 0.73ms",
    )
    machines.add_argument(
        "--overhead", metavar="TIME", help="additional duration of every update (default: 0)"
    )
    machines.add_argument("--price", metavar="X", type=float, help="price of a worker for an hour")
    network = parser.add_argument_group("the network (default: no cost)")
    network.add_argument(
        "--bandwidth", metavar="RATE", help="bits per second, such as 10Gb/s (default: no limit)"
    )
    network.add_argument("--latency", metavar="TIME", help="such as 50us (default: 0)")
    network.add_argument(
        "--network",
        metavar="NAME",
        help="one of the AdaDamp paper's: decentralized-moderate, decentralized-high, centralized",
    )
    network.add_argument(
        "--architecture",
        choices=("all-reduce", "centralized"),
        help="algorithm that sums gradients (default: all-reduce)",
    )
    parser.add_argument("--output", metavar="PNG", type=Path, help="also save a figure")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run ``accelerando plan`` and return the exit code."""
    require("train", "accelerando plan")
    from rich.console import Console

    from accelerando.cost import compare
    from accelerando.cost._parse import parse_workers
    from accelerando.cost._report import table, words

    counts = parse_workers(arguments.workers)
    output = None if arguments.output is None else check_output(arguments.output)
    if output is not None:
        _check_matplotlib()
    comparison = compare(_planned(arguments, max(counts)), counts)
    console = Console(highlight=False)
    console.print(table(comparison))
    for line in words(comparison):
        console.print(line, markup=False, soft_wrap=True)
    if output is not None:
        from accelerando import plot

        plot.plan(comparison).savefig(output, dpi=110)
        console.print(f"Figure saved: {output}", markup=False, soft_wrap=True)
    return 0


def _check_matplotlib() -> None:
    """Raise before the work if there can be no figure."""
    from accelerando.plot._style import figure_class

    try:
        figure_class()
    except ImportError as error:
        raise ValueError(f"--output: {error}") from None


def _planned(arguments: argparse.Namespace, max_workers: int) -> Plan:
    import pandas as pd

    from accelerando.cost import plan, replan
    from accelerando.cost._parse import parse_batch_size, parse_seconds

    per_example = arguments.seconds_per_example
    overhead = arguments.overhead
    times: dict[str, Any] = {
        "seconds_per_example": per_example and parse_seconds(per_example, "--seconds-per-example"),
        "overhead": overhead and parse_seconds(overhead, "--overhead"),
    }
    machines: dict[str, Any] = {
        "parameters": arguments.parameters,
        "examples_per_worker": arguments.examples_per_worker,
        "min_workers": arguments.min_workers,
        "network": _network(arguments),
        "architecture": arguments.architecture,
        "price_per_worker_hour": arguments.price,
    }
    if arguments.record is not None:
        if arguments.examples is not None or arguments.epochs is not None:
            raise ValueError("--run replaces --examples and --epochs: leave them out.")
        return replan(pd.read_csv(arguments.record), workers=max_workers, **times, **machines)
    _check_complete(arguments)
    return plan(
        parse_batch_size(arguments.batch_size),
        n_examples=arguments.examples,
        max_epochs=arguments.epochs,
        max_batch_size=arguments.max_batch_size,
        max_workers=max_workers,
        seconds_per_example=times["seconds_per_example"],
        overhead=times["overhead"] or 0.0,
        **machines,
    )


def _check_complete(arguments: argparse.Namespace) -> None:
    """Raise if an option is missing that a plan without ``--run`` needs."""
    needed = {
        "--examples": arguments.examples,
        "--epochs": arguments.epochs,
        "--seconds-per-example": arguments.seconds_per_example,
    }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise ValueError(
            f"A plan needs {', '.join(missing)}. Or pass a recorded run with --run. "
            "accelerando.cost.measure measures the durations."
        )


def _network(arguments: argparse.Namespace) -> Network | str | None:
    from accelerando.cost import Network
    from accelerando.cost._parse import parse_bandwidth, parse_seconds

    if arguments.network is not None and (arguments.bandwidth or arguments.latency):
        raise ValueError(
            "--network includes bandwidth and latency: leave out --bandwidth and --latency."
        )
    if arguments.network is not None:
        return str(arguments.network)
    if arguments.bandwidth is None and arguments.latency is None:
        return None
    bandwidth = parse_bandwidth(arguments.bandwidth) if arguments.bandwidth else float("inf")
    return Network(bandwidth, parse_seconds(arguments.latency) if arguments.latency else 0.0)
