"""How far ranks drift apart, and how often they meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando.plot._panels import INK, _clean, _log_if_wide
from accelerando.plot._training import COLORS, _figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def averaging(run: Any, *, title: str | None = None) -> Figure:
    """Draw the spread of the ranks' parameters and the period between two averagings.

    These are Figures 2 and 3 of the paper on adaptive periodic averaging, for one's own run. The
    first is V_t, the mean variance between two averagings, if ``ParameterSpread(every=1)`` was
    among the monitors; otherwise it is S_k, the spread just before each averaging.

    Parameters
    ----------
    run : fitted estimator, or its ``updates_frame()``
        Trained with a strategy of :mod:`accelerando.sync` that averages parameters.
    title : str, optional
        Headline of the figure.

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
    ...                       "synchronisations": [1, 2, 2, 3]})
    >>> [panel.get_ylabel() for panel in plot.averaging(frame).axes]
    ['spread S_k before an averaging', 'period (updates)']
    """
    figure_class = _figure_class()
    frame = run.updates_frame() if callable(getattr(run, "updates_frame", None)) else run
    if not isinstance(frame, pd.DataFrame) or "synchronisations" not in frame.columns:
        raise TypeError(
            "averaging draws an estimator that was fitted with an averaging strategy of "
            f"accelerando.sync, or its updates_frame(). Got {type(run).__name__} without a column "
            "'synchronisations'."
        )
    drift, label = _drift(frame)
    figure: Figure = figure_class(figsize=(8.0, 3.2), layout="constrained")
    upper, lower = figure.subplots(1, 2)
    upper.plot(drift["update"], drift["spread"], color=COLORS[0], lw=1.2)
    upper.set_ylabel(label)
    _log_if_wide(upper, [float(value) for value in drift["spread"] if value > 0])
    lower.step(frame["update"], frame["period"], color=COLORS[1], lw=1.4, where="post")
    lower.set_ylabel("period (updates)")
    lower.set_ylim(bottom=0)
    times = int(frame["synchronisations"].iloc[-1])
    lower.annotate(
        f"{times} averagings", (0.98, 0.04), xycoords="axes fraction", ha="right", color=INK
    )
    for panel in (upper, lower):
        _clean(panel)
        panel.set_xlabel("model updates")
    if title:
        figure.suptitle(title, color=INK, fontsize=14, fontweight="bold", x=0.01, ha="left")
    return figure


def _drift(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return one row for each averaging: its update, and V_t or S_k."""
    met = frame["spread"].notna()
    seen = frame.get("parameter_spread")
    if seen is None or seen.isna().any() or (seen.diff()[1:] == 0).all():
        return frame.loc[met, ["update", "spread"]], "spread S_k before an averaging"
    # V_t is over the variances before each of the updates: none after an averaging, and then
    # what the update before has left.
    before = seen.shift(1).where(~met.shift(1, fill_value=True), 0.0)
    stretch = met.shift(1, fill_value=False).cumsum()
    grouped = pd.DataFrame({"update": frame["update"], "spread": before}).groupby(stretch)
    return grouped.agg({"update": "last", "spread": "mean"}), "mean variance V_t of parameters"
