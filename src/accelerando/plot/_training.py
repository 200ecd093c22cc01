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
    legend_below,
    legend_with_results,
    outcome_name,
)
from accelerando.plot._style import COLORS, DASHES, figure_class, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NEEDED = ("epoch", "updates", "seconds", "batch_size", "lr")

Named = tuple[str, pd.DataFrame]


def training(
    *runs: Any,
    labels: Sequence[str] | None = None,
    x: str | Sequence[str] = ("epochs", "updates", "seconds"),
    score: str | None = None,
    held_out: str = "validation",
    title: str | None = None,
) -> Figure:
    """Draw score, loss, batch size and learning rate of one or several runs.

    The upper rows show score and loss against epochs, model updates and seconds. The lowest row
    shows batch size and learning rate against epochs. Score and loss are those of the validation
    set of ``train_split``. Without one there is no score, and the loss is the training loss,
    dashed.

    Parameters
    ----------
    *runs : fitted estimators, their ``history_frame()``, or dictionaries from label to either
        The runs to draw.
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

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("run.png")``; a notebook shows it after
        ``%matplotlib inline``.

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
    n_columns = max(2, len(columns))
    height = 2.5 * (len(upper) + 1) + 0.9
    figure: Figure = figure_class()(figsize=(3.6 * n_columns, height), layout="constrained")
    grid = figure.add_gridspec(len(upper) + 1, n_columns)
    for row, kind in enumerate(upper):
        first: Axes | None = None
        for column, name in enumerate(columns):
            panel = figure.add_subplot(grid[row, column], sharey=first)
            first = first or panel
            draw_outcome(panel, kind, score, AXES[name], lines)
            if column == 0:
                panel.set_ylabel(outcome_name(kind, score, lines, held_out))
            else:
                panel.tick_params(which="both", labelleft=False)
    draw_batch_size(figure.add_subplot(grid[-1, 0]), lines)
    draw_lr(figure.add_subplot(grid[-1, 1]), lines)
    figure.align_ylabels()
    headline(figure, title)
    if n_columns == 3 and len(lines) <= 6:
        legend_with_results(figure.add_subplot(grid[-1, 2]), lines, score)
    else:
        legend_below(figure, lines)
    return figure


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
        found = [(str(name), frame) for name, (_, frame) in zip(labels, found, strict=True)]
    return [
        Line(label, frame, COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)])
        for i, (label, frame) in enumerate(found)
    ]


def _frames(run: Any, position: int) -> Iterator[Named]:
    """Yield label and frame of one argument, or of every item if it is a dictionary."""
    if isinstance(run, Mapping):
        for label, part in run.items():
            yield str(label), _frame(part, f"runs[{label!r}]")
        return
    name = _policy_name(run) or f"run {position + 1}"
    yield name, _frame(run, f"run number {position + 1}")


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
        (name if names.count(name) == 1 else f"{name} ({i + 1})", frame)
        for i, (name, (_, frame)) in enumerate(zip(names, found, strict=True))
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
