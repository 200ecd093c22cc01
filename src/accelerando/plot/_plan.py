"""Figures of plans and of comparisons of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerando._validation import parameter_error
from accelerando.cost import Comparison, Plan
from accelerando.plot._style import COLORS, INK, clean, figure_class, integer_ticks, thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plan(planned: Plan | Comparison) -> Figure:
    """Draw a plan over epochs, or a comparison over numbers of workers.

    The figure of a plan shows batch size, workers, time and worker-hours against epochs. The figure
    of a comparison shows time and worker-hours against workers and marks the knee. If there is a
    price, it replaces the worker-hours.

    Parameters
    ----------
    planned : Plan or Comparison
        The result of :func:`accelerando.cost.plan`, :func:`accelerando.cost.replan` or
        :func:`accelerando.cost.compare`.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("plan.png")``.

    Examples
    --------
    >>> from accelerando import cost, plot
    >>> planned = cost.plan(64, n_examples=640, max_epochs=2, parameters=10,
    ...                     seconds_per_example=0.001)
    >>> [panel.get_ylabel() for panel in plot.plan(planned).axes]
    ['batch size', 'workers', 'hours', 'worker-hours']
    >>> [panel.get_xlabel() for panel in plot.plan(cost.compare(planned, [1, 2])).axes]
    ['max_workers', 'max_workers']
    """
    if isinstance(planned, Comparison):
        return _draw_comparison(planned)
    if isinstance(planned, Plan):
        return _draw_plan(planned)
    raise TypeError(
        str(
            parameter_error(
                "plan", "planned", "a Plan or a Comparison of accelerando.cost", planned
            )
        )
    )


def _draw_plan(planned: Plan) -> Figure:
    frame = planned.frame()
    figure: Figure = figure_class()(figsize=(9, 5.2), layout="constrained")
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
            panel.yaxis.set_major_formatter(thousands)
        elif not steps:
            panel.set_ylim(bottom=0)
    return figure


def _draw_comparison(comparison: Comparison) -> Figure:
    frame = comparison.frame()
    figure: Figure = figure_class()(figsize=(9, 3), layout="constrained")
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
        _finish(panel, "max_workers", name)
    return figure


def _finish(panel: Any, x: str, y: str) -> None:
    clean(panel)
    integer_ticks(panel)
    panel.set(xlabel=x, ylabel=y)
