"""Figure of communication: bytes and seconds of an update, by codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerando.plot._panels import updates_of
from accelerando.plot._style import COLORS, INK, canvas, clean, headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (
    ("compute", "#b9b9b9"),
    ("wait and send", COLORS[0]),
    ("encode", COLORS[1]),
    ("decode", COLORS[4]),
)


def communication(
    runs: Mapping[str, Any], *, title: str | None = None, figure: Any = None
) -> Figure:
    """Draw what an update sends and where its time goes, for runs with different codecs.

    Parameters
    ----------
    runs : mapping from label to a fitted estimator or its ``updates_frame()``
        For example ``{"float32": net, "QSGD": other}``; both were trained with ``client=``.
    title : str, optional
        The title of the figure.
    figure : Figure or SubFigure of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("communication.png")``. A notebook shows it.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando import plot
    >>> frame = pd.DataFrame({"seconds": [1.0, 2.0], "bytes": [4000, 4000],
    ...                       "wait_seconds": [0.5, 0.4]})
    >>> [panel.get_xlabel() for panel in plot.communication({"float32": frame}).axes]
    ['kB per update', 'milliseconds per update']
    """
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(
            "The 'runs' parameter of communication must be a dictionary from labels to fitted "
            f"estimators or their updates_frame(). Got {type(runs).__name__} instead."
        )
    measured = {str(label): _per_update(str(label), run) for label, run in runs.items()}
    figure = canvas(figure, 9.5, 1.3 + 0.5 * len(runs))
    sent, spent = figure.subplots(1, 2, sharey=True)
    places = range(len(measured))
    unit, size = _unit(max(found["bytes"] for found in measured.values()))
    values = [found["bytes"] / size for found in measured.values()]
    sent.barh(places, values, color=COLORS[2], height=0.6)
    for place, value in zip(places, values, strict=True):
        offset = {"textcoords": "offset points", "va": "center", "color": INK, "fontsize": 9}
        sent.annotate(f"{value:,.3g}", (value, place), (4, 0), **offset)
    sent.set(xlabel=f"{unit} per update", xlim=(0, 1.18 * max(values) or 1))
    left = [0.0] * len(measured)
    for part, color in PARTS:
        widths = [1e3 * found[part] for found in measured.values()]
        if any(widths):
            spent.barh(places, widths, left=left, color=color, height=0.6, label=part)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    spent.set(xlabel="milliseconds per update")
    sent.set_yticks(places, list(measured))
    sent.invert_yaxis()
    for panel in (sent, spent):
        clean(panel)
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
    figure.legend(
        handles=spent.get_legend_handles_labels()[0],
        loc="outside lower right",
        ncols=len(PARTS),
        frameon=False,
        fontsize=9,
    )
    headline(figure, title)
    return figure  # type: ignore[no-any-return]


def _per_update(label: str, run: Any) -> dict[str, float]:
    """Return the bytes and the parts of the seconds of a mean update."""
    fitted = "an estimator that was fitted with client="
    frame = updates_of(f"runs[{label!r}]", run, ("seconds", "bytes", "wait_seconds"), fitted)

    def mean(name: str) -> float:
        return float(frame[name].mean()) if name in frame else 0.0

    wait, encode, decode = (mean(f"{name}_seconds") for name in ("wait", "encode", "decode"))
    total = float(frame["seconds"].iloc[-1]) / len(frame)  # a total since training began
    rest = max(0.0, total - wait - encode - decode)
    return {
        "bytes": mean("bytes"),
        "compute": rest,
        "wait and send": wait,
        "encode": encode,
        "decode": decode,
    }


def _unit(size: float) -> tuple[str, float]:
    return ("MB", 1e6) if size >= 1e6 else ("kB", 1e3)
