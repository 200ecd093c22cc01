"""What monitors saw and policies decided, update by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando.plot._panels import INK, _clean, _log_if_wide
from accelerando.plot._training import COLORS, _figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_USUAL = ("loss", "batch_size", "lr", "ranks")


def signals(run: Any, names: Sequence[str] | None = None, *, title: str | None = None) -> Figure:
    """Draw signals of one run against model updates, one panel for each.

    Parameters
    ----------
    run : fitted estimator, or its ``updates_frame()``
        What to draw.
    names : sequence of str, optional
        Columns of ``updates_frame()``; loss, batch size, learning rate, ranks and all signals of
        monitors if not given. Where the noise scale is drawn, its lower bound and the batch size
        are drawn with it.
    title : str, optional
        Headline of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("signals.png")``.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando import plot
    >>> frame = pd.DataFrame({"update": [1, 2, 3], "loss": [1.0, 0.5, 0.4],
    ...                       "noise_scale": [float("nan"), 20.0, 30.0]})
    >>> [panel.get_ylabel() for panel in plot.signals(frame).axes]
    ['loss', 'noise scale']
    """
    figure_class = _figure_class()
    frame = run.updates_frame() if callable(getattr(run, "updates_frame", None)) else run
    if not isinstance(frame, pd.DataFrame) or "update" not in frame.columns:
        raise TypeError(
            "signals draws a fitted estimator or its updates_frame(). Got "
            f"{type(run).__name__} instead."
        )
    chosen = _chosen(frame, names)
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure: Figure = figure_class(figsize=(3.8 * columns, 2.3 * rows + 0.5), layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    for number, name in enumerate(chosen):
        panel = figure.add_subplot(grid[number // columns, number % columns])
        panel.plot(frame["update"], frame[name], color=COLORS[0], lw=1.4)
        if name == "noise_scale":
            _with_bounds(panel, frame)
        _clean(panel)
        _log_if_wide(panel, [float(v) for v in frame[name].dropna()])
        panel.set(xlabel="model updates", ylabel=name.replace("_", " "))
    if title:
        figure.suptitle(title, color=INK, fontsize=14, fontweight="bold", x=0.01, ha="left")
    return figure


def _with_bounds(panel: Any, frame: pd.DataFrame) -> None:
    drawn = False
    for name, color, label in (
        ("noise_scale_low", COLORS[5], "at least"),
        ("batch_size", COLORS[1], "batch size"),
    ):
        if name in frame.columns:
            panel.plot(frame["update"], frame[name], color=color, lw=1.0, label=label)
            drawn = True
    if drawn:
        panel.legend(frameon=False, fontsize=8, labelcolor="linecolor")


def _chosen(frame: pd.DataFrame, names: Sequence[str] | None) -> list[str]:
    if names is None:
        from accelerando._engine.position import UPDATE_COLUMNS

        own = [str(name) for name in frame.columns if name not in UPDATE_COLUMNS]
        names = [name for name in _USUAL if name in frame.columns]
        names += [name for name in own if frame[name].notna().any()]
    unknown = [name for name in names if name not in frame.columns]
    if unknown or isinstance(names, str) or not names:
        known = ", ".join(str(name) for name in frame.columns)
        raise ValueError(f"names must list columns of updates_frame(): {known}. Got {names!r}.")
    return list(names)
