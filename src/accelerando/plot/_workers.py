"""Figure of the workers that a run wanted and had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando._validation import check_integer
from accelerando.plot._panels import updates_of
from accelerando.plot._style import COLORS, clean, headline, integer_ticks, label_ends, single_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def workers(
    run: Any, *, examples_per_worker: int | None = None, title: str | None = None, ax: Any = None
) -> Figure:
    """Draw the workers that each batch was worth, and the ranks that trained, over time.

    The batch is worth ⌈batch size / examples_per_worker⌉ workers, within the bounds of the
    estimator. There are fewer ranks while workers start, or if the cluster has no more.

    Parameters
    ----------
    run : fitted estimator, or its ``updates_frame()``
        The run to draw.
    examples_per_worker : int, optional
        Default: that of the estimator. A frame needs it.
    title : str, optional
        The title of the figure.
    ax : Axes of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("workers.png")``. A notebook shows it.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando import plot
    >>> frame = pd.DataFrame({"seconds": [1.0, 2.0], "batch_size": [128, 512], "ranks": [1, 2]})
    >>> panel = plot.workers(frame, examples_per_worker=128).axes[0]
    >>> [line.get_ydata().tolist() for line in panel.lines]
    [[1.0, 4.0], [1, 2]]
    """
    frame = updates_of("The 'run' parameter of workers", run, ("seconds", "batch_size", "ranks"))
    rows: Any = examples_per_worker or getattr(run, "examples_per_worker", None)
    check_integer("workers", "examples_per_worker", rows)
    fewest, most = (getattr(run, name, None) for name in ("min_workers", "max_workers"))
    wanted = np.ceil(frame["batch_size"] / rows).clip(fewest or 1, most)
    figure, panel = single_panel(ax, 7.0, 3.2)
    seconds, had = frame["seconds"], frame["ranks"]
    panel.step(seconds, wanted, where="pre", color=COLORS[1], lw=1.6)
    panel.step(seconds, had, where="pre", color=COLORS[0], lw=2.2)
    missing = wanted.to_numpy() > had.to_numpy()
    style = {"step": "pre", "color": COLORS[1], "alpha": 0.15, "lw": 0}
    panel.fill_between(seconds, had, wanted, where=missing, **style)
    clean(panel)
    panel.set(xlabel="seconds", ylabel="workers", xlim=(0, None))
    panel.set_ylim(0, 1.12 * max(wanted.max(), had.max()))
    integer_ticks(panel, "y")
    ends = [("wanted", COLORS[1], wanted.iloc[-1]), ("had", COLORS[0], had.iloc[-1])]
    label_ends(panel, ends)
    headline(figure, title)
    return figure  # type: ignore[no-any-return]
