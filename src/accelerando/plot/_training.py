"""Figure of one or several training runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando._validation import is_integer, parameter_error
from accelerando.plot._panels import (
    ACCURACIES,
    AXES,
    Line,
    draw_batch_size,
    draw_lr,
    draw_outcome,
    draw_ranks,
    label_batch_sizes,
    label_outcome,
    legend_below,
    outcome_name,
)
from accelerando.plot._style import COLORS, DASHES, canvas, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LABELED = 6  # more runs than these get a legend
NEEDED = ("epoch", "updates", "seconds", "batch_size", "lr")

Named = tuple[str, list[pd.DataFrame]]


def training(
    *runs: Any,
    labels: Sequence[str] | None = None,
    x: str | Sequence[str] = ("epochs", "updates", "seconds"),
    score: str | None = None,
    held_out: str = "validation",
    title: str | None = None,
    figure: Any = None,
) -> Figure:
    """Draw score, losses, batch size and learning rate of one or several runs.

    The upper rows show score and losses against epochs, model updates and seconds: those of the
    validation set of ``train_split``, and the training loss, dashed. The lowest row shows batch
    size, learning rate and, if there were several, ranks against epochs.

    Parameters
    ----------
    *runs : fitted estimators, their ``history_frame()``, or dictionaries from label to either
        The runs to draw. A list in a dictionary has the runs of several seeds: the figure shows
        their mean and a band from the smallest to the largest value.
    labels : sequence of str, optional
        A name for each run. Default: an estimator is named by its batch-size policy, and the runs
        of a dictionary by their keys.
    x : str or sequence of str
        The columns of panels, from ``"epochs"``, ``"updates"`` and ``"seconds"``.
    score : str, optional
        The column of ``history_frame()`` for the first row, for example that of an
        ``EpochScoring`` callback. Default: ``"valid_acc"`` if it exists.
    held_out : str
        The name of the held-out data of ``train_split``. Pass ``"test"`` if no choice depended on
        them.
    title : str, optional
        The title of the figure.
    figure : Figure or SubFigure of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("run.png")``. A notebook shows it.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando import plot
    >>> frame = pd.DataFrame({"epoch": [1, 2], "updates": [10, 15], "seconds": [0.1, 0.2],
    ...                       "batch_size": [32, 64], "lr": [0.1, 0.1],
    ...                       "valid_loss": [0.5, 0.4], "valid_acc": [0.8, 0.9]})
    >>> figure = plot.training({"growing": frame})
    >>> [panel.get_xlabel() for panel in figure.axes[:3]]
    ['epochs', 'model updates', 'seconds']
    """
    columns = _columns(x)
    lines = _lines(runs, labels)
    score = _score(score, lines)
    upper = ["score", "loss"] if score else ["loss"]
    has_ranks = any("ranks" in run.frame and run.frame["ranks"].max() > 1 for run in lines)
    lowest = [draw_batch_size, draw_lr, *([draw_ranks] if has_ranks else [])]
    width = max(2, len(columns), len(lowest))
    figure = canvas(figure, 3.4 * width + 0.8, 2.4 * (len(upper) + 1) + 0.6)
    grid = figure.add_gridspec(len(upper) + 1, 1)
    labeled = len(lines) <= LABELED
    for row, kind in enumerate(upper):
        first: Axes | None = None
        cells = grid[row].subgridspec(1, len(columns))
        for column, name in enumerate(columns):
            panel = figure.add_subplot(cells[column], sharey=first)
            draw_outcome(panel, kind, score, AXES[name], lines)
            if first is None:
                first = panel
                panel.set_ylabel(outcome_name(kind, score, lines, held_out))
            else:
                panel.tick_params(which="both", labelleft=False)
        if labeled:
            label_outcome(panel, kind, score, lines)
    cells = grid[-1].subgridspec(1, len(lowest))
    panels = [figure.add_subplot(cells[column]) for column in range(len(lowest))]
    for panel, draw in zip(panels, lowest, strict=True):
        draw(panel, lines)
    if labeled:
        label_batch_sizes(panels[0], lines)
    else:
        legend_below(figure, lines)
    headline(figure, title)
    return figure  # type: ignore[no-any-return]


def _columns(x: str | Sequence[str]) -> list[str]:
    names = [x] if isinstance(x, str) else list(x)
    if not names or any(name not in AXES for name in names) or len(set(names)) < len(names):
        allowed = f"one or several of {', '.join(map(repr, AXES))}, each once"
        raise parameter_error("training", "x", allowed, x)
    return names


def _lines(runs: Sequence[Any], labels: Sequence[str] | None) -> list[Line]:
    found = [pair for position, run in enumerate(runs) for pair in _frames(run, position)]
    if not found:
        raise ValueError(
            "training needs at least one run: a fitted estimator, its history_frame(), or a "
            "dictionary from label to either."
        )
    if labels is None:
        found = _distinct(found)
    else:
        if isinstance(labels, str) or len(labels) != len(found):
            allowed = f"a list with one name for each of the {len(found)} runs"
            raise parameter_error("training", "labels", allowed, labels)
        if any(isinstance(run, Mapping) for run in runs):
            raise ValueError("The keys of a dictionary are its labels: leave out labels=.")
        found = [(str(name), frames) for name, (_, frames) in zip(labels, found, strict=True)]
    return [
        _line(label, frames, COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)])
        for i, (label, frames) in enumerate(found)
    ]


def _line(label: str, frames: list[pd.DataFrame], color: str, dash: str) -> Line:
    """Return one run as it is, or the mean of several over the epochs that all have."""
    if len(frames) == 1:
        return Line(label, frames[0], color, dash)
    numbers = [frame.select_dtypes("number") for frame in frames]
    epochs = pd.concat(numbers).groupby("epoch", as_index=False)
    shared = (epochs.size()["size"] == len(frames)).to_numpy()
    mean, low, high = (found[shared] for found in (epochs.mean(), epochs.min(), epochs.max()))
    return Line(label, mean, color, dash, low, high)


def _frames(run: Any, position: int) -> Iterator[Named]:
    """Yield label and frames of one argument, or of every item if it is a dictionary."""
    if isinstance(run, Mapping):
        for label, part in run.items():
            seeds = part if isinstance(part, list | tuple) and part else [part]
            yield str(label), [_frame(one, f"runs[{label!r}]") for one in seeds]
        return
    name = _policy_name(run) or f"run {position + 1}"
    yield name, [_frame(run, f"run number {position + 1}")]


def _policy_name(run: Any) -> str | None:
    """Return the batch-size policy of an estimator with its settings; None for a frame."""
    policy = None if isinstance(run, pd.DataFrame) else getattr(run, "batch_size", None)
    if policy is None:
        return None
    if is_integer(policy):
        return "FullBatch()" if policy == -1 else f"Constant(size={policy})"
    if isinstance(policy, type):
        given = run.get_params_for("batch_size")
        return f"{policy.__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
    return getattr(policy, "__name__", None) or repr(policy)


def _distinct(found: list[Named]) -> list[Named]:
    """Name a policy by its class if that is unique, else by its settings or its number."""
    short = [label.split("(")[0] for label, _ in found]
    full = [label for label, _ in found]
    names = [s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True)]
    return [
        (name if names.count(name) == 1 else f"{name} ({i + 1})", frames)
        for i, (name, (_, frames)) in enumerate(zip(names, found, strict=True))
    ]


def _frame(run: Any, what: str) -> pd.DataFrame:
    if callable(getattr(run, "history_frame", None)):
        run = run.history_frame()
    if not isinstance(run, pd.DataFrame):
        raise TypeError(
            f"{what} must be a fitted estimator of accelerando or its history_frame(). Got "
            f"{type(run).__name__} instead."
        )
    missing = [name for name in NEEDED if name not in run.columns]
    if missing:
        hint = " This looks like an updates_frame()." if "update" in run.columns else ""
        raise ValueError(
            f"{what} has no column {', '.join(missing)}: pass what history_frame() returned.{hint}"
        )
    if run.empty:
        raise ValueError(f"{what} has no finished epoch to draw. Train it for at least one epoch.")
    return run


def _score(score: str | None, lines: Sequence[Line]) -> str | None:
    """Return the column of the first row of panels; None if there is none."""
    if score is None:
        return next((name for name in ACCURACIES if any(name in run.frame for run in lines)), None)
    if not any(score in run.frame for run in lines):
        known = sorted({str(name) for run in lines for name in run.frame} - set(NEEDED))
        allowed = f"a column of a history_frame() ({', '.join(known)})"
        raise parameter_error("training", "score", allowed, score)
    return score
