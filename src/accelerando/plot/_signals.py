"""Figure of the signals of a run, update by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando._validation import parameter_error
from accelerando.plot._style import COLORS, clean, figure_class, headline, log_if_wide

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


def signals(run: Any, names: Sequence[str] | None = None, *, title: str | None = None) -> Figure:
    """Draw the signals of a run against model updates, one panel for each.

    Parameters
    ----------
    run : fitted estimator, or its ``updates_frame()``
        The run to draw.
    names : sequence of str, optional
        Columns of ``updates_frame()``. Default: loss, batch size, learning rate, ranks and all
        signals of monitors. The panel of the noise scale also shows its lower bound and the batch
        size.
    title : str, optional
        The title of the figure.

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
    frame = run.updates_frame() if callable(getattr(run, "updates_frame", None)) else run
    if not isinstance(frame, pd.DataFrame) or "update" not in frame.columns:
        raise TypeError(
            "The 'run' parameter of signals must be a fitted estimator or its updates_frame(). Got "
            f"{type(run).__name__} instead."
        )
    chosen = _chosen(frame, names)
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure: Figure = figure_class()(figsize=(3.8 * columns, 2.3 * rows + 0.5), layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    for number, name in enumerate(chosen):
        panel = figure.add_subplot(grid[number // columns, number % columns])
        panel.plot(frame["update"], frame[name], color=COLORS[0], lw=1.4)
        if name == "noise_scale":
            _with_bounds(panel, frame)
        clean(panel)
        log_if_wide(panel, [float(v) for v in frame[name].dropna()])
        panel.set(xlabel="model updates", ylabel=name.replace("_", " "))
    headline(figure, title)
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
        usual = [name for name in _USUAL if name in frame.columns]
        others = [str(name) for name in frame.columns if name not in (*_USUAL, *_NOT_DRAWN)]
        names = usual + [name for name in others if frame[name].notna().any()]
    unknown = [name for name in names if name not in frame.columns]
    if unknown or isinstance(names, str) or not names:
        known = ", ".join(str(name) for name in frame.columns)
        raise parameter_error("signals", "names", f"a list of columns of the run: {known}", names)
    return list(names)
