"""Style of the figures: colors, grid, number formats; and the import of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#333333", "#dddddd"
# Okabe and Ito's colors: distinguishable with every common kind of color blindness, and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")  # for the eighth curve and later, when the colors repeat


def figure_class() -> type[Figure]:
    """Return matplotlib's Figure; raise an error that names the extra if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Figures need matplotlib, which is not installed: pip install 'accelerando[plot]'"
        ) from error
    return Figure


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


def integer_ticks(panel: Axes) -> None:
    """Put the ticks of the x axis at integers."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def thousands(value: float, position: float = 0) -> str:
    """Return a number with commas between thousands.

    >>> thousands(12500.0), thousands(0.05)
    ('12,500', '0.05')
    """
    return f"{value:,.6g}"
