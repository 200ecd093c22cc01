"""Figure of periodic averaging: the spread of the parameters and the period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando.plot._panels import updates_of
from accelerando.plot._style import COLORS, INK, canvas, clean, headline, log_if_wide

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def averaging(run: Any, *, title: str | None = None, figure: Any = None) -> Figure:
    """Draw the spread of the ranks' parameters and the period between two averagings.

    These are Figures 2 and 3 of the paper on adaptive periodic averaging. The first panel shows
    V_t, the mean variance between two averagings, if ``ParameterSpread(every=1)`` was among the
    monitors. Otherwise it shows S_k, the spread before each averaging.

    Parameters
    ----------
    run : fitted estimator, or its ``updates_frame()``
        Trained with a strategy of :mod:`accelerando.sync` that averages parameters.
    title : str, optional
        The title of the figure.
    figure : Figure or SubFigure of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("averaging.png")``.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando import plot
    >>> frame = pd.DataFrame({"update": [1, 2, 3, 4], "period": [1, 1, 2, 2],
    ...                       "spread": [0.1, 0.2, float("nan"), 0.3],
    ...                       "averagings": [1, 2, 2, 3]})
    >>> [panel.get_ylabel() for panel in plot.averaging(frame).axes]
    ['spread S_k before an averaging', 'period (updates)']
    """
    if isinstance(run, pd.DataFrame):  # perhaps of an earlier version
        run = run.rename(columns={"synchronisations": "averagings"})
    fitted = "an estimator that was fitted with an averaging strategy of accelerando.sync"
    needed = ("averagings", "period", "spread")
    frame = updates_of("The 'run' parameter of averaging", run, needed, fitted)
    drift, label = _drift(frame)
    figure = canvas(figure, 8.0, 3.2)
    upper, lower = figure.subplots(1, 2)
    upper.plot(drift["update"], drift["spread"], color=COLORS[0], lw=1.2)
    upper.set_ylabel(label)
    log_if_wide(upper, [float(value) for value in drift["spread"] if value > 0])
    lower.step(frame["update"], frame["period"], color=COLORS[1], lw=1.4, where="post")
    lower.set_ylabel("period (updates)")
    lower.set_ylim(bottom=0)
    times = int(frame["averagings"].iloc[-1])
    lower.annotate(
        f"{times} averagings", (0.98, 0.04), xycoords="axes fraction", ha="right", color=INK
    )
    for panel in (upper, lower):
        clean(panel)
        panel.set_xlabel("model updates")
    headline(figure, title)
    return figure  # type: ignore[no-any-return]


def _drift(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return one row for each averaging, with its update and V_t or S_k, and a label."""
    averaged = frame["spread"].notna()
    seen = frame.get("parameter_spread")
    if seen is None or seen.isna().any() or (seen.diff()[1:] == 0).all():
        return frame.loc[averaged, ["update", "spread"]], "spread S_k before an averaging"
    # V_t is the mean of the variances before each update: zero after an averaging, otherwise the
    # variance after the previous update.
    before = seen.shift(1).where(~averaged.shift(1, fill_value=True), 0.0)
    stretch = averaged.shift(1, fill_value=False).cumsum()
    grouped = pd.DataFrame({"update": frame["update"], "spread": before}).groupby(stretch)
    return grouped.agg({"update": "last", "spread": "mean"}), "mean variance V_t of parameters"
