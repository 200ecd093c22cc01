"""``accelerando plan``: from options to a table, a sentence and a picture."""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from accelerando.cost._compare import Comparison, compare, duration, money
from accelerando.cost._network import Network
from accelerando.cost._parse import (
    parse_bandwidth,
    parse_batch_size,
    parse_seconds,
    parse_workers,
)
from accelerando.cost._plan import Plan, plan
from accelerando.cost._replay import replay


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``accelerando plan``."""
    counts = parse_workers(arguments.workers)
    comparison = compare(_plan(arguments, max(counts)), counts)
    console = Console(highlight=False)
    console.print(table(comparison))
    for line in words(comparison):
        console.print(line, markup=False, soft_wrap=True)
    if arguments.output is not None:
        from accelerando.demo import check_output

        comparison.plot().savefig(check_output(str(arguments.output)), dpi=110)
        console.print(f"The picture of it: {arguments.output}", markup=False, soft_wrap=True)
    return 0


def _plan(arguments: argparse.Namespace, most: int) -> Plan:
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
            raise ValueError(
                "--run already says what --examples and --epochs would: leave them out."
            )
        return replay(pd.read_csv(arguments.record), workers=most, **times, **machines)
    missing = [
        name
        for name, value in (
            ("--examples", arguments.examples),
            ("--epochs", arguments.epochs),
            ("--seconds-per-example", per_example),
        )
        if value is None
    ]
    if missing:
        raise ValueError(
            f"A plan needs {', '.join(missing)}. Or give a recorded run with --run; "
            "accelerando.cost.measure finds the times."
        )
    return plan(
        parse_batch_size(arguments.batch_size),
        n_examples=arguments.examples,
        max_epochs=arguments.epochs,
        max_batch_size=arguments.max_batch_size,
        max_workers=most,
        seconds_per_example=times["seconds_per_example"],
        overhead=times["overhead"] or 0.0,
        **machines,
    )


def _network(arguments: argparse.Namespace) -> Network | str | None:
    if arguments.network is not None and (arguments.bandwidth or arguments.latency):
        raise ValueError("--network brings its own bandwidth and latency: leave out the others.")
    if arguments.network is not None:
        return str(arguments.network)
    if arguments.bandwidth is None and arguments.latency is None:
        return None
    bandwidth = parse_bandwidth(arguments.bandwidth) if arguments.bandwidth else float("inf")
    return Network(bandwidth, parse_seconds(arguments.latency) if arguments.latency else 0.0)


def table(comparison: Comparison) -> Table:
    """Return one row per number of workers."""
    first = comparison.plans[0]
    result = Table(
        title=f"{first.updates:,} updates, {first.frame()['epoch'].iloc[-1]:,} epochs",
        title_style="bold",
        title_justify="left",
    )
    priced = first.price is not None
    names = ["workers", "at peak", "time", "speed-up", "worker-h", "sent"]
    for name in [*names, *(["price"] if priced else [])]:
        result.add_column(name, justify="right", no_wrap=True)
    for found, row in zip(comparison.plans, comparison.frame().itertuples(), strict=True):
        cells = [
            f"{row.max_workers}{' *' if row.knee else ''}",
            f"{row.peak_workers}",
            duration(found.seconds),
            f"{row.speedup:.1f}",
            f"{found.worker_seconds / 3600:,.3g}",
            volume(found.bytes),
            *([money(found.price)] if found.price is not None else []),
        ]
        result.add_row(*cells, style="bold" if row.knee else None)
    return result


def words(comparison: Comparison) -> list[str]:
    """Return what the table says, in sentences."""
    knee, last = comparison.knee, comparison.plans[-1]
    chosen = {p.setting.max_workers: p for p in (comparison.plans[0], knee, last)}
    said = Comparison(tuple(chosen[count] for count in sorted(chosen))).sentence()
    lines = [said[0].upper() + said[1:] + "."]
    if len(comparison.plans) > 1:
        lines.append(
            f"* The knee is at {knee.setting.max_workers}: the least product of time and "
            "worker-hours. Beyond it, workers cost more than they save."
        )
    if last.peak_workers < last.setting.max_workers:
        lines.append(
            f"No batch is worth more than {last.peak_workers} workers at "
            f"{last.setting.examples_per_worker} examples per worker."
        )
    return lines


def volume(size: float) -> str:
    """Return bytes as a person says them.

    Examples
    --------
    >>> volume(0), volume(2_345_678), volume(3.1e12)
    ('0 B', '2.3 MB', '3.1 TB')
    """
    for name in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if name == "B" else f"{size:.1f} {name}"
        size /= 1000
    return f"{size:,.1f} TB"
