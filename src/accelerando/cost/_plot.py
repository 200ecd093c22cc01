"""Pictures of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerando.plot._panels import INK, _clean, _thousands
from accelerando.plot._training import COLORS, _figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accelerando.cost._compare import Comparison
    from accelerando.cost._plan import Plan


def draw_plan(plan: Plan) -> Figure:
    """Draw four panels over epochs."""
    frame = plan.frame()
    figure: Figure = _figure_class()(figsize=(9, 5.2), layout="constrained")
    panels = figure.subplots(2, 2)
    priced = "price" in frame
    drawn = [
        ("batch size", frame["batch_size"], True),
        ("workers", frame["workers"], True),
        ("hours", frame["seconds"] / 3600, False),
        (
            "price" if priced else "worker-hours",
            frame["price"] if priced else frame["worker_seconds"] / 3600,
            False,
        ),
    ]
    for panel, (name, values, steps), color in zip(panels.flat, drawn, COLORS, strict=False):
        style = "steps-mid" if steps else "default"
        panel.plot(frame["epoch"], values, color=color, lw=2, drawstyle=style)
        _finish(panel, "epochs", name)
        if steps and values.max() >= 4 * values.min():
            panel.set_yscale("log", base=2)
            panel.yaxis.set_major_formatter(_thousands)
        elif not steps:
            panel.set_ylim(bottom=0)
    return figure


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw time, and work or price, against workers."""
    frame = comparison.frame()
    figure: Figure = _figure_class()(figsize=(9, 3), layout="constrained")
    priced = bool(frame["price"].notna().all())
    work = frame["price"].astype(float) if priced else frame["worker_seconds"] / 3600
    knee = frame["knee"].to_numpy()
    drawn = [("hours", frame["seconds"] / 3600), ("price" if priced else "worker-hours", work)]
    for panel, (name, values), color in zip(figure.subplots(1, 2), drawn, COLORS, strict=False):
        panel.plot(frame["max_workers"], values, "o-", color=color, lw=2, ms=4)
        panel.plot(
            frame["max_workers"][knee], values[knee], "o", ms=12, mfc="none", mec=INK, label="knee"
        )
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
        _finish(panel, "most workers", name)
    return figure


def _finish(panel: Any, x: str, y: str) -> None:
    from matplotlib.ticker import MaxNLocator

    _clean(panel)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    panel.set(xlabel=x, ylabel=y)
