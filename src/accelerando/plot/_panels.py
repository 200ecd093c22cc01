"""Panels of the figure of a training run, and its legend."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from accelerando.plot._style import clean, integer_ticks, log_if_wide, thousands

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
    """One run: its label, its frame, and how it is drawn."""

    label: str
    frame: pd.DataFrame
    color: str
    dash: str


def draw_outcome(
    panel: Axes, kind: str, score: str | None, axis: tuple[str, str], lines: Sequence[Line]
) -> None:
    """Draw the score or the loss of all runs against one axis."""
    column, axis_name = axis
    drawn: list[float] = []
    for run in lines:
        name = _loss_of(run) if kind == "loss" else str(score)
        if name not in run.frame:
            continue
        dash = "--" if name == "train_loss" else run.dash
        _curve(panel, run.frame[column], run.frame[name], run, dash)
        drawn += _values([run], name)
    clean(panel)
    panel.set_xlabel(axis_name)
    if column == "epoch":
        _epoch_axis(panel, lines)
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_formatter(thousands)
    if kind == "loss":
        log_if_wide(panel, drawn)
    elif str(score).endswith("_acc"):
        panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")


def outcome_name(kind: str, score: str | None, lines: Sequence[Line], held_out: str) -> str:
    """Return the name of the quantity that a row of panels shows."""
    if kind == "score":
        return {"valid_acc": f"{held_out} accuracy", "train_acc": "training accuracy"}.get(
            str(score), str(score)
        )
    names = {_loss_of(run) for run in lines}
    if names == {"train_loss"}:
        return "training loss"
    return f"{held_out} loss" if len(names) == 1 else f"{held_out} loss (dashed: training)"


def _loss_of(run: Line) -> str:
    return "valid_loss" if "valid_loss" in run.frame else "train_loss"


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
    return "\n".join(wrap(label, 34)) or label


def legend_with_results(panel: Axes, lines: Sequence[Line], score: str | None) -> None:
    """Draw the legend in a cell of the grid, with the result of each run."""
    panel.axis("off")
    handles = _handles(lines)
    for handle, run in zip(handles, lines, strict=True):
        handle.set_label(f"{handle.get_label()}\n{_result(run, score)}")
    panel.legend(
        handles=handles,
        loc="center left",
        frameon=False,
        fontsize=10,
        labelspacing=1.1,
        labelcolor="linecolor",
        borderaxespad=0,
    )


def _result(run: Line, score: str | None) -> str:
    last = run.frame.iloc[-1]
    column = score if score is not None and score in run.frame else _loss_of(run)
    parts = [f"{thousands(last['updates'])} updates", f"{float(last['seconds']):.2f} s"]
    if column in run.frame:
        value = float(last[column])
        parts.insert(0, f"{100 * value:.1f} %" if column.endswith("_acc") else f"{value:.4g}")
    return ", ".join(parts)


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
