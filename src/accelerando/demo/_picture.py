"""The demo's results as one figure: bars, curves, and a map."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from accelerando.demo import _crowd, _search, _train
from accelerando.plot._style import COLORS, INK, clean, figure_class, percent, thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USUAL, OURS = "#9a9a9a", COLORS[0]


class Results(NamedTuple):
    """Results of the three blocks of the demo."""

    training: _train.Training
    searches: _search.Searches
    crowds: _crowd.Crowds


def draw(results: Results) -> Figure:
    """Return the figure: a column for each block."""
    figure: Any = figure_class()(figsize=(11, 4.6), layout="constrained")
    train, search, crowd = figure.subfigures(1, 3, width_ratios=(1.0, 1.1, 1.0), wspace=0.04)
    _draw_training(train, results.training)
    _draw_searches(search, results.searches)
    _draw_crowds(crowd, results.crowds)
    return figure  # type: ignore[no-any-return]


def _heading(part: Any, text: str) -> None:
    part.suptitle(text, color=INK, fontsize=11, fontweight="bold", x=0.03, ha="left")


def _draw_training(part: Any, training: _train.Training) -> None:
    goal = f"{_train.TARGET:.0%}".replace("%", " %")
    _heading(part, f"Train: to {goal} test accuracy")
    found = {label: _train.reached(frames) for label, frames in training.items()}
    upper, lower = part.subplots(2, 1)
    _bars(upper, {k: f.updates for k, f in found.items()}, "model updates", "{:,.0f}")
    _bars(lower, {k: f.seconds for k, f in found.items()}, "seconds", "{:.2f}")


def _draw_searches(part: Any, searches: _search.Searches) -> None:
    _heading(part, "Search: best accuracy so far")
    panel = part.subplots()
    for label, color, above in (("random search", USUAL, False), ("Hyperband", OURS, True)):
        mean = _search.mean_curve(searches[label])
        runs = np.array([curve[: len(mean)] for curve in searches[label]])
        calls = np.arange(1, len(mean) + 1)
        panel.fill_between(calls, runs.min(0), runs.max(0), color=color, alpha=0.18, lw=0)
        panel.plot(calls, mean, color=color, lw=2)
        at = len(mean) * 3 // 4
        panel.annotate(
            label,
            (calls[at], mean[at]),
            (0, 8 if above else -10),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            color=color if above else INK,
        )
    clean(panel)
    panel.set(xlabel="partial_fit calls", ylim=(0.5, 1.0))
    panel.yaxis.set_major_formatter(percent)


def _draw_crowds(part: Any, crowds: _crowd.Crowds) -> None:
    _heading(part, "Ask: a map of 30 items")
    upper, lower = part.subplots(2, 1, height_ratios=(1.35, 1.0))
    positions = crowds["chosen"][0].positions
    upper.scatter(*positions.T, c=np.arange(len(positions)), cmap="viridis", s=42, lw=0)
    upper.set(xticks=[], yticks=[], aspect="equal")
    upper.set_title("color: smoothness of the item", fontsize=9, color=INK)
    for side in upper.spines.values():
        side.set_color("#dddddd")
    answers = {
        f"{label} questions": float(np.mean([one.answers for one in asked]))
        for label, asked in crowds.items()
    }
    _bars(lower, answers, "answers needed", "{:,.0f}")


def _bars(panel: Any, values: dict[str, float], label: str, number: str) -> None:
    """Draw one bar for each method, the usual one in gray; a missing value is written."""
    names = list(values)
    known = [0.0 if math.isnan(value) else value for value in values.values()]
    colors = [USUAL, *[OURS] * (len(names) - 1)]
    panel.barh(range(len(names)), known, color=colors, height=0.62)
    for row, value in enumerate(values.values()):
        text = "not reached" if math.isnan(value) else number.format(value)
        panel.annotate(
            text, (known[row], row), (4, 0), textcoords="offset points", va="center", color=INK
        )
    clean(panel)
    panel.grid(visible=False)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set(xlabel=label, xlim=(0, 1.22 * (max(known) or 1)))
    panel.xaxis.set_major_formatter(thousands)
    panel.tick_params(axis="y", length=0)
