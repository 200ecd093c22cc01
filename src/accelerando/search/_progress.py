"""Progress table of a search: brackets, live models, best score, and time left."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from accelerando.search._driver import Driver

__all__ = ["progress_table", "time_left"]


def progress_table(driver: Driver, plan: dict[str, Any], name: str = "") -> Table:
    """Return the progress of `driver` as a table with one row per bracket.

    Parameters
    ----------
    driver : Driver
        A search in progress.
    plan : dict
        The ``metadata`` of the search.
    name : str
        Name of the search, shown in the title.
    """
    best = driver.best
    score = "–" if best is None or best.score is None else f"{best.score:.4f}"
    planned = plan["partial_fit_calls"]
    prefix = f"{name}: " if name else ""
    table = Table(
        title=f"{prefix}best {score} · {driver.calls}/{planned} calls · "
        f"{driver.elapsed:.0f} s, {time_left(driver, planned)} left"
    )
    for heading in ("bracket", "models", "alive", "calls", "best"):
        table.add_column(heading, justify="right")
    for entry in plan["brackets"]:
        models = [m for m in list(driver.models.values()) if m.bracket.index == entry["bracket"]]
        scores = [m.score for m in models if m.score is not None and not math.isnan(m.score)]
        table.add_row(
            str(entry["bracket"]),
            str(entry["n_models"]),
            str(sum(m.number in driver.live for m in models)),
            f"{sum(m.calls for m in models)}/{entry['partial_fit_calls']}",
            f"{max(scores):.4f}" if scores else "–",
        )
    return table


def time_left(driver: Driver, planned_calls: int) -> str:
    """Return the remaining time, estimated from the mean duration of the calls so far."""
    if not driver.calls:
        return "?"
    left = driver.elapsed / driver.calls * max(0, planned_calls - driver.calls)
    if driver.settings.max_seconds is not None:
        left = min(left, max(0.0, driver.settings.max_seconds - driver.elapsed))
    return f"{left:.0f} s"
