"""Figure of the signals of a run, update by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando._validation import parameter_error
from accelerando.plot._panels import updates_of
from accelerando.plot._style import COLORS, canvas, clean, headline, label_ends, log_if_wide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_USUAL = ("loss", "batch_size", "lr", "ranks")
_NOT_DRAWN = (
    "update",
    "epoch",
    "examples",
    "grad_norm",
    "seconds",
    "bytes",
    "wait_seconds",
    "encode_seconds",
    "decode_seconds",
)


def signals(
    run: Any, names: Sequence[str] | None = None, *, title: str | None = None, figure: Any = None
) -> Figure:
    """Draw the signals of a run against model updates, one panel for each.

    Parameters
    ----------
    run : fitted estimator, or its ``updates_frame()``
        The run to draw.
    names : sequence of str, optional
        Columns of ``updates_frame()``. Default: loss, batch size, learning rate, ranks and all
        signals of monitors. The panel of the noise scale also shows an interval of 95 % and the
        batch size.
    title : str, optional
        The title of the figure.
    figure : Figure or SubFigure of matplotlib, optional
        Where to draw. Default: a new figure.

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
    frame = updates_of("The 'run' parameter of signals", run, ("update",))
    chosen = _chosen(frame, names)
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = canvas(figure, max(5.0, 3.8 * columns), 2.3 * rows + 0.5)
    grid = figure.add_gridspec(rows, columns)
    for number, name in enumerate(chosen):
        panel = figure.add_subplot(grid[number // columns, number % columns])
        # Some signals are known in some updates only, such as the spread before an averaging.
        known = frame[frame[name].notna()]
        panel.plot(known["update"], known[name], color=COLORS[0], lw=1.4)
        clean(panel)
        log_if_wide(panel, [float(v) for v in frame[name].dropna()])
        panel.set(xlabel="model updates", ylabel=name.replace("_", " "))
        if name == "noise_scale":
            _with_interval(panel, frame)
    headline(figure, title)
    return figure  # type: ignore[no-any-return]


def _with_interval(panel: Any, frame: pd.DataFrame) -> None:
    """Add the interval of the noise scale and the batch size, with labels at their ends."""
    scale = frame["noise_scale"]
    ends = [("noise scale", COLORS[0], float(scale.dropna().iloc[-1]))] if scale.any() else []
    if "noise_scale_error" in frame.columns:  # relative, see monitor.GradientNoiseScale
        error = 1.96 * frame["noise_scale_error"] * scale
        known = error.notna() & (error < float("inf"))
        low, high = (scale - error).clip(lower=0.0), scale + error
        band = {"color": COLORS[0], "alpha": 0.15, "lw": 0}
        panel.fill_between(frame["update"][known], low[known], high[known], **band)
    if "batch_size" in frame.columns:
        panel.plot(frame["update"], frame["batch_size"], color=COLORS[1], lw=1.4)
        ends.append(("batch size", COLORS[1], float(frame["batch_size"].iloc[-1])))
    label_ends(panel, ends, gap=0.12)


def _chosen(frame: pd.DataFrame, names: Sequence[str] | None) -> list[str]:
    if names is None:
        usual = [name for name in _USUAL if name in frame.columns]
        others = [str(name) for name in frame.columns if name not in (*_USUAL, *_NOT_DRAWN)]
        names = usual + [name for name in others if frame[name].notna().any()]
    unknown = [name for name in names if name not in frame.columns]
    if unknown or isinstance(names, str) or not names:
        known = ", ".join(str(name) for name in frame.columns)
        raise parameter_error("signals", "names", f"a list of columns of the run: {known}", names)
    return list(names)
