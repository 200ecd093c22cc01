"""Figures of plans and of comparisons of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerando._validation import parameter_error
from accelerando.plot._style import COLORS, INK, canvas, clean, integer_ticks, thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accelerando.cost import Plan
    from accelerando.cost._compare import Comparison


def plan(planned: Plan | Comparison, *, currency: str = "$", figure: Any = None) -> Figure:
    """Draw a plan over epochs, or a comparison over numbers of workers.

    The figure of a plan shows batch size, workers, time and worker-hours against epochs. The figure
    of a comparison shows time and worker-hours against workers and marks the knee. If there is a
    price, it replaces the worker-hours.

    Parameters
    ----------
    planned : Plan or result of compare
        The result of :func:`accelerando.cost.plan`, :func:`accelerando.cost.replan` or
        :func:`accelerando.cost.compare`.
    currency : str
        The currency of the price.
    figure : Figure or SubFigure of matplotlib, optional
        Where to draw. Default: a new figure.

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
    from accelerando.cost import Plan
    from accelerando.cost._compare import Comparison

    if isinstance(planned, Comparison):
        return _draw_comparison(planned, currency, figure)
    if isinstance(planned, Plan):
        return _draw_plan(planned, currency, figure)
    raise TypeError(
        str(
            parameter_error(
                "plan", "planned", "the result of plan or compare of accelerando.cost", planned
            )
        )
    )


def _draw_plan(planned: Plan, currency: str, figure: Any) -> Figure:
    frame = planned.frame()
    figure = canvas(figure, 9, 5.2)
    panels = figure.subplots(2, 2)
    priced = "price" in frame
    drawn = [
        ("batch size", frame["batch_size"], True),
        ("workers", frame["workers"], True),
        ("hours", frame["seconds"] / 3600, False),
        (
            f"price ({currency})" if priced else "worker-hours",
            frame["price"] if priced else frame["worker_seconds"] / 3600,
            False,
        ),
    ]
    for panel, (name, values, steps), color in zip(panels.flat, drawn, COLORS, strict=False):
        style = "steps-mid" if steps else "default"
        panel.plot(frame["epoch"], values, color=color, lw=2, drawstyle=style)
        _finish(panel, "epochs", name)
        if name == "workers":
            integer_ticks(panel, "y")
        if steps and values.max() >= 4 * values.min():
            panel.set_yscale("log", base=2)
            panel.yaxis.set_major_formatter(thousands)
        else:
            panel.set_ylim(0, 1.15 * float(values.max()) or 1)
    return figure  # type: ignore[no-any-return]


def _draw_comparison(comparison: Comparison, currency: str, figure: Any) -> Figure:
    frame = comparison.frame()
    figure = canvas(figure, 9, 3)
    priced = bool(frame["price"].notna().all())
    work = frame["price"].astype(float) if priced else frame["worker_seconds"] / 3600
    knee = frame["knee"].to_numpy()
    drawn = [
        ("hours", frame["seconds"] / 3600),
        (f"price ({currency})" if priced else "worker-hours", work),
    ]
    for panel, (name, values), color in zip(figure.subplots(1, 2), drawn, COLORS, strict=False):
        panel.plot(frame["max_workers"], values, "o-", color=color, lw=2, ms=4)
        panel.plot(
            frame["max_workers"][knee],
            values[knee],
            "o",
            ms=12,
            mfc="none",
            mec=INK,
        )
        place = (float(frame["max_workers"][knee].iloc[0]), float(values[knee].iloc[0]))
        panel.annotate("knee", place, (8, 8), textcoords="offset points", color=INK)
        panel.set_ylim(0, 1.15 * float(values.max()) or 1)
        _finish(panel, "max_workers", name)
    return figure  # type: ignore[no-any-return]


def _finish(panel: Any, x: str, y: str) -> None:
    clean(panel)
    integer_ticks(panel)
    panel.set_xlabel(x)
    panel.set_ylabel(y, parse_math=False)
