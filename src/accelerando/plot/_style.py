"""Style of the figures: colors, grid, number formats; and the import of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accelerando._extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#333333", "#dddddd"
# Okabe and Ito's colors: distinguishable with every common kind of color blindness, and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")  # for the eighth curve and later, when the colors repeat


def figure_class() -> type[Figure]:
    """Return our Figure; raise an error that names the extra if matplotlib is not installed."""
    require("plot", "A figure", "matplotlib")
    from accelerando.plot._figure import NotebookFigure

    return NotebookFigure


def canvas(figure: Any, width: float, height: float) -> Any:
    """Return the figure that a user passed, or a new one of this size in inches."""
    kind = figure_class()
    if figure is None:
        return kind(figsize=(width, height), layout="constrained")
    if not hasattr(figure, "add_gridspec"):
        raise TypeError(
            "The 'figure' parameter must be a Figure or SubFigure of matplotlib. Got "
            f"{type(figure).__name__} instead."
        )
    return figure


def single_panel(ax: Any, width: float, height: float) -> tuple[Any, Any]:
    """Return the figure and the panel: those of a user's ``ax``, or new ones."""
    kind = figure_class()
    if ax is None:
        figure = kind(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()
    if not hasattr(ax, "get_figure"):
        raise TypeError(
            f"The 'ax' parameter must be Axes of matplotlib. Got {type(ax).__name__} instead."
        )
    return ax.get_figure(), ax


def label_ends(panel: Axes, ends: Sequence[tuple[str, str, float]], *, gap: float = 0.09) -> None:
    """Write labels at the right of a panel, next to the ends of its curves, without overlaps.

    Parameters
    ----------
    panel : Axes
        A panel whose limits are final.
    ends : sequence of (label, color, y)
        The curves; y is the last value.
    gap : float
        The distance of two lines of text, as a share of the panel's height.
    """
    known = [end for end in ends if math.isfinite(end[2])]
    shown: Any = panel.transData.transform([(1.0, y) for _, _, y in known]) if known else []
    heights = [panel.transAxes.inverted().transform(point)[1] for point in shown]
    for (label, color, _), height in zip(known, spread(heights, gap), strict=True):
        panel.annotate(
            label,
            (1.02, height),
            xycoords="axes fraction",
            color=color,
            va="center",
            fontsize=9,
            annotation_clip=False,
            parse_math=False,  # a dollar sign in a name is not LaTeX
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights in [0, 1] in the same order that are at least `gap` apart, if they fit.

    >>> [round(height, 2) for height in spread([0.5, 0.52, 0.9], 0.1)]
    [0.46, 0.56, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    gap = min(gap, 1.0 / max(1, len(heights) - 1))
    groups: list[tuple[float, list[int]]] = []  # (mean height, members), from bottom to top
    for i in order:
        mean, members = min(1.0, max(0.0, heights[i])), [i]
        while groups and _top(*groups[-1], gap) + gap > _bottom(mean, members, gap):
            below, others = groups.pop()
            total = below * len(others) + mean * len(members)
            members = others + members
            mean = total / len(members)
            half = gap * (len(members) - 1) / 2
            mean = min(1.0 - half, max(half, mean))
        groups.append((mean, members))
    found = [0.0] * len(heights)
    for mean, members in groups:
        for place, i in enumerate(members):
            found[i] = _bottom(mean, members, gap) + place * gap
    return found


def _bottom(mean: float, members: Sequence[int], gap: float) -> float:
    return mean - gap * (len(members) - 1) / 2


def _top(mean: float, members: Sequence[int], gap: float) -> float:
    return mean + gap * (len(members) - 1) / 2


def headline(figure: Figure, title: str | None) -> None:
    """Write the title of a figure, if there is one."""
    if title:
        figure.suptitle(title, color=INK, fontsize=14, fontweight="bold", x=0.01, ha="left")


def clean(panel: Axes) -> None:
    """Draw a light grid and no frame."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(INK)
    panel.grid(color=FAINT, lw=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(colors=INK, labelsize=9)
    for text in (panel.xaxis.label, panel.yaxis.label):
        text.set(color=INK, fontsize=10)


def log_if_wide(panel: Axes, values: Sequence[float]) -> None:
    """Use a logarithmic scale if a linear one would hide all but the largest values."""
    from matplotlib.ticker import LogLocator, NullFormatter

    finite = [value for value in values if value < float("inf")]
    if finite and min(finite) > 0 and max(finite) >= 20 * min(finite):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(thousands)
        panel.yaxis.set_minor_formatter(NullFormatter())


def integer_ticks(panel: Axes, axis: str = "x") -> None:
    """Put the ticks of an axis at integers."""
    from matplotlib.ticker import MaxNLocator

    chosen = panel.xaxis if axis == "x" else panel.yaxis
    chosen.set_major_locator(MaxNLocator(integer=True, nbins=6))


def thousands(value: float, position: float = 0) -> str:
    """Return a number with commas between thousands.

    >>> thousands(12500.0), thousands(0.05)
    ('12,500', '0.05')
    """
    return f"{value:,.6g}"


def percent(value: float, position: float = 0) -> str:
    """Return a share as a percentage.

    >>> percent(0.985)
    '98.5 %'
    """
    return f"{100 * value:.4g} %"
