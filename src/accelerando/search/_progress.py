"""Progress of a search: brackets, live models, leaders, and time left.

A terminal shows two tables, a notebook plain HTML, and a log one line now and then.
"""

from __future__ import annotations

import heapq
import html
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from accelerando.search._driver import Driver

__all__ = ["Progress", "leaders", "progress_table", "time_left"]

N_LEADERS = 5
HEADINGS = ("model", "calls", "score", "parameters")


class Progress:
    """The state of a search at one moment, in the forms that displays need.

    Parameters
    ----------
    driver : Driver
        A search in progress.
    plan : dict
        Its brackets; see :func:`accelerando.search._plan.total`.
    name : str
        Name of the search.
    """

    def __init__(self, driver: Driver, plan: dict[str, Any], name: str = "") -> None:
        self.brackets = progress_table(driver, plan, name)
        self.leaders = leaders(driver)

    def __rich__(self) -> Group:
        table = Table(title="leaders", title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading)
        for row in self.leaders:
            table.add_row(*map(Text, row))  # a Text, because rich would interpret brackets
        return Group(self.brackets, table)

    def _repr_html_(self) -> str:
        columns = [(str(column.header), list(column.cells)) for column in self.brackets.columns]
        first = [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
        tables: list[tuple[Any, Any]] = [
            ([heading for heading, _ in columns], first),
            (HEADINGS, self.leaders),
        ]
        parts = [f"<p>{html.escape(str(self.brackets.title))}</p>"]
        for headings, rows in tables:
            lines = [f"<tr>{_cells('th', headings)}</tr>"]
            lines += [f"<tr>{_cells('td', row)}</tr>" for row in rows]
            parts.append(f"<table>{''.join(lines)}</table>")
        return "".join(parts)

    def __str__(self) -> str:
        first = f" · leader: {self.leaders[0][0]} {self.leaders[0][3]}" if self.leaders else ""
        return f"{self.brackets.title}{first}"


def _cells(tag: str, texts: Any) -> str:
    return "".join(f"<{tag}>{html.escape(str(text))}</{tag}>" for text in texts)


def leaders(driver: Driver) -> list[tuple[str, str, str, str]]:
    """Return the best models at this moment: name, calls, score and parameters of each."""
    scored = [
        model
        for model in list(driver.models.values())
        if model.score is not None and not math.isnan(model.score)
    ]
    best = heapq.nsmallest(N_LEADERS, scored, key=lambda model: model.rank)
    return [
        (
            str(model.rows[-1]["model_id"] if model.rows else model.number),
            str(model.calls),
            f"{model.score:.4f}",
            _shown(model.params),
        )
        for model in best
    ]


def _shown(params: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value!r}"
        for name, value in params.items()
    )


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
