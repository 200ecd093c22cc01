"""The demo's results as one table that fits on a screen of 80 columns and 24 lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from accelerando.demo import _crowd, _search, _train

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from accelerando.demo._picture import Results


def table(results: Results) -> Table:
    """Return the table of the results."""
    from rich import box
    from rich.table import Table

    n_seeds = len(results.training["constant"])
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column(f"computed here, {n_seeds} seed{'s' if n_seeds > 1 else ''}", no_wrap=True)
    result.add_column("effort", justify="right", no_wrap=True)
    result.add_column("seconds", justify="right", no_wrap=True)

    result.add_row(f"[bold]Train[/] handwritten digits to {_percent(_train.TARGET, 0)} accuracy")
    for label, frames in results.training.items():
        found = _train.reached(frames)
        sizes = " to ".join(f"{size:,}" for size in sizes_of(frames))
        missed = "" if found.runs == found.of else f" ({found.runs} of {found.of} runs)"
        result.add_row(
            f"  {label}: batch {sizes}{missed}",
            _amount(found.updates, "updates"),
            "-" if math.isnan(found.seconds) else f"{found.seconds:.2f}",
        )
    score = final_score(results)
    result.add_row(f"[bold]Search[/] to {_percent(score, 1)} accuracy, where random search ends")
    for label, curves in results.searches.items():
        calls = _search.calls_to(_search.mean_curve(curves), score)
        result.add_row(f"  {label}", _amount(math.nan if calls is None else calls, "calls"))
    points = f"{100 * _crowd.WITHIN:.0f} points"
    result.add_row(f"[bold]Ask[/] about {_crowd.ITEMS} items until the map is within {points}")
    for label, asked in results.crowds.items():
        answers = needed([one.answers for one in asked])
        result.add_row(f"  {label} questions", _amount(answers, "answers"))
    return result


def sizes_of(frames: list[pd.DataFrame]) -> list[int]:
    """Return the first and the last batch size of runs; one size if it is constant."""
    last = int(frames[0]["batch_size"].iloc[-1])
    return [_train.INITIAL] if last == _train.INITIAL else [_train.INITIAL, last]


def final_score(results: Results) -> float:
    """Return the mean best accuracy at which random search ends."""
    return float(_search.mean_curve(results.searches["random search"])[-1])


def needed(answers: list[float]) -> float:
    """Return the mean number of answers; NaN if an experiment did not reach the goal."""
    return float(np.mean(answers))


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def _amount(value: float, unit: str) -> str:
    return "not reached" if math.isnan(value) else f"{value:,.0f} {unit}"
