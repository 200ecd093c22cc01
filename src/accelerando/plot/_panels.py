"""Panels of the figure of a training run, and its legend."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from accelerando.plot._style import (
    clean,
    integer_ticks,
    label_ends,
    log_if_wide,
    percent,
    thousands,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "epochs": ("epoch", "epochs"),
    "updates": ("updates", "model updates"),
    "seconds": ("seconds", "seconds"),
}
ACCURACIES = ("valid_acc", "train_acc")


class Line(NamedTuple):
    """One run, or the runs of several seeds: label, frame of means, and how it is drawn.

    Attributes
    ----------
    low, high : DataFrame or None
        Smallest and largest values over the seeds, in the rows of `frame`.
    """

    label: str
    frame: pd.DataFrame
    color: str
    dash: str
    low: pd.DataFrame | None = None
    high: pd.DataFrame | None = None


def updates_of(
    what: str, run: Any, needed: Sequence[str], fitted: str = "a fitted estimator"
) -> pd.DataFrame:
    """Return the frame of updates of an estimator, or a frame that is one.

    Parameters
    ----------
    what : str
        The argument, as the subject of the message: "The 'run' parameter of signals".
    run : object
        What the user passed.
    needed : sequence of str
        Columns that it must have.
    fitted : str
        The estimators that have them.
    """
    frame = run.updates_frame() if callable(getattr(run, "updates_frame", None)) else run
    columns = frame.columns if isinstance(frame, pd.DataFrame) else ()
    missing = [name for name in needed if name not in columns]
    if missing:
        without = f" without {', '.join(map(repr, missing))}" if len(columns) else ""
        raise TypeError(
            f"{what} must be {fitted} or its updates_frame(). Got {type(run).__name__}{without} "
            "instead."
        )
    found: pd.DataFrame = frame
    return found


def draw_outcome(
    panel: Axes, kind: str, score: str | None, axis: tuple[str, str], lines: Sequence[Line]
) -> None:
    """Draw the score or the losses of all runs against one axis."""
    column, axis_name = axis
    drawn: list[float] = []
    for run in lines:
        for name in _columns(kind, score, run):
            training = name == "train_loss" and kind == "loss"
            _band(panel, run, column, name)
            _curve(
                panel,
                run.frame[column],
                run.frame[name],
                run,
                "--" if training else run.dash,
                width=1.1 if training and "valid_loss" in run.frame else 1.8,
            )
            drawn += _values([run], name)
    clean(panel)
    panel.set_xlabel(axis_name)
    if column == "epoch":
        _epoch_axis(panel, lines)
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_formatter(thousands)
        panel.xaxis.set_major_locator(_few_ticks())
    if kind == "loss":
        log_if_wide(panel, drawn)
    elif str(score).endswith("_acc"):
        panel.yaxis.set_major_formatter(percent)


def label_outcome(panel: Axes, kind: str, score: str | None, lines: Sequence[Line]) -> None:
    """Write the names of the runs, and their final scores, next to their ends."""
    ends = []
    for run in lines:
        names = _columns(kind, score, run)
        values = _values([run], names[0]) if names else []
        if values:
            ends.append(
                (f"{_wrap(run.label)}{_final(kind, score, values[-1])}", run.color, values[-1])
            )
    label_ends(panel, ends)


def _final(kind: str, score: str | None, value: float) -> str:
    if kind == "loss":
        return ""
    return f", {100 * value:.1f} %" if str(score).endswith("_acc") else f", {value:.4g}"


def _columns(kind: str, score: str | None, run: Line) -> list[str]:
    names = ["valid_loss", "train_loss"] if kind == "loss" else [str(score)]
    return [name for name in names if name in run.frame]


def _band(panel: Axes, run: Line, x: str, y: str) -> None:
    if run.low is not None and run.high is not None and y in run.low:
        band: Any = {"color": run.color, "alpha": 0.15, "lw": 0}
        panel.fill_between(run.frame[x], run.low[y], run.high[y], **band)


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5)


def outcome_name(kind: str, score: str | None, lines: Sequence[Line], held_out: str) -> str:
    """Return the name of the quantity that a row of panels shows."""
    if kind == "score":
        return {"valid_acc": f"{held_out} accuracy", "train_acc": "training accuracy"}.get(
            str(score), str(score)
        )
    names = {name for run in lines for name in _columns("loss", None, run)}
    if names == {"train_loss"}:
        return "training loss"
    return f"{held_out} loss" if len(names) == 1 else f"{held_out} loss (dashed: training)"


def draw_batch_size(panel: Axes, lines: Sequence[Line]) -> None:
    """Draw the batch sizes of all runs against epochs."""
    for run in lines:
        _curve(panel, run.frame["epoch"], run.frame["batch_size"], run, run.dash, steps=True)
    clean(panel)
    sizes = _values(lines, "batch_size")
    if max(sizes) >= 4 * min(sizes):
        panel.set_yscale("log", base=2)
    else:
        panel.set_ylim(0, 1.15 * max(sizes))
    panel.yaxis.set_major_formatter(thousands)
    panel.set(xlabel="epochs", ylabel="batch size")
    _epoch_axis(panel, lines)


def draw_lr(panel: Axes, lines: Sequence[Line]) -> None:
    """Draw the learning rates of all runs against epochs."""
    for i, run in enumerate(lines):
        # Runs often have the same rate: wider lines below keep all of them visible.
        width = 1.8 + 4.4 * (len(lines) - 1 - i) / max(1, len(lines) - 1)
        _curve(panel, run.frame["epoch"], run.frame["lr"], run, run.dash, steps=True, width=width)
    clean(panel)
    rates = _values(lines, "lr")
    log_if_wide(panel, rates)
    if panel.get_yscale() == "linear":
        panel.set_ylim(0, 1.15 * max(rates) or 1)
    panel.set(xlabel="epochs", ylabel="learning rate")
    _epoch_axis(panel, lines)


def draw_ranks(panel: Axes, lines: Sequence[Line]) -> None:
    """Draw the numbers of ranks of all runs against epochs."""
    for run in lines:
        if "ranks" in run.frame:
            _curve(panel, run.frame["epoch"], run.frame["ranks"], run, run.dash, steps=True)
    clean(panel)
    panel.set_ylim(0, 1.15 * max(_values(lines, "ranks")))
    panel.set(xlabel="epochs", ylabel="ranks")
    integer_ticks(panel, "y")
    _epoch_axis(panel, lines)


def label_batch_sizes(panel: Axes, lines: Sequence[Line]) -> None:
    """Write the names of the runs next to their last batch sizes."""
    label_ends(
        panel, [(_wrap(run.label), run.color, _values([run], "batch_size")[-1]) for run in lines]
    )


def _curve(
    panel: Axes,
    xs: Any,
    ys: Any,
    run: Line,
    dash: str,
    *,
    steps: bool = False,
    width: float = 1.8,
) -> None:
    style = "steps-mid" if steps else "default"
    panel.plot(xs, ys, dash, color=run.color, lw=width, drawstyle=style, solid_capstyle="butt")
    # A dot at the end of a run is visible even if curves coincide.
    panel.plot(list(xs)[-1:], list(ys)[-1:], "o", color=run.color, ms=4.5, mec="white", mew=0.8)


def _values(lines: Sequence[Line], column: str) -> list[float]:
    return [float(v) for run in lines if column in run.frame for v in run.frame[column].dropna()]


def _epoch_axis(panel: Axes, lines: Sequence[Line]) -> None:
    integer_ticks(panel)
    last = max(_values(lines, "epoch"))
    panel.set_xlim(0 if last > 5 else 0.5, last * 1.03 if last > 5 else last + 0.5)


def _handles(lines: Sequence[Line]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=r.color, ls=r.dash, lw=2.5, label=_wrap(r.label)) for r in lines]


def _wrap(label: str) -> str:
    return "\n".join(wrap(label, 24)) or label


def legend_below(figure: Figure, lines: Sequence[Line]) -> None:
    """Draw the legend below the panels."""
    figure.legend(
        handles=_handles(lines),
        loc="outside lower center",
        ncols=min(3, len(lines)),
        frameon=False,
        fontsize=10,
        labelcolor="linecolor",
    )
