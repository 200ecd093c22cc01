"""Report of a comparison in the terminal: a table and sentences."""

from __future__ import annotations

from rich.table import Table

from accelerando.cost._compare import Comparison, duration, money


def table(comparison: Comparison) -> Table:
    """Return the table with one row per number of workers."""
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
    """Return the sentences below the table."""
    knee, last = comparison.knee, comparison.plans[-1]
    chosen = {p.setting.max_workers: p for p in (comparison.plans[0], knee, last)}
    sentence = Comparison(tuple(chosen[count] for count in sorted(chosen))).sentence()
    lines = [sentence[0].upper() + sentence[1:] + "."]
    if len(comparison.plans) > 1:
        lines.append(
            f"* The knee is at {knee.setting.max_workers}: the least product of time and "
            "worker-hours. More workers cost more than they save."
        )
    if last.peak_workers < last.setting.max_workers:
        lines.append(
            f"No batch uses more than {last.peak_workers} workers at "
            f"{last.setting.examples_per_worker} examples per worker."
        )
    return lines


def volume(size: float) -> str:
    """Return a number of bytes with its unit, rounded.

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
