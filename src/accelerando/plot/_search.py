"""Figure of a hyperparameter search: scores, the best score so far, and the parameters.

The figure reads public attributes of a fitted search only: ``cv_results_``, ``history_`` and
``model_history_``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando.plot._style import figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["search"]


def search(search: Any, *, max_models: int = 200, log_scale: bool = True) -> Figure:
    """Draw a fitted search in four panels.

    The panels show the score of each model against calls and against seconds, the best score so
    far, and the parameters of all models as parallel coordinates. Good models are dark.

    Parameters
    ----------
    search : fitted search
        Any search of :mod:`accelerando.search`.
    max_models : int, default=200
        Draw at most this many models: those with the best scores.
    log_scale : bool, default=True
        Draw parameters that span more than two decades on a logarithmic axis.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("search.png")``.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import SGDClassifier
    >>> from accelerando import plot
    >>> from accelerando.search import IncrementalSearchCV
    >>> fitted = IncrementalSearchCV(
    ...     SGDClassifier(), {"alpha": [1e-4, 1e-2]}, "grid", max_iter=2, client=None
    ... ).fit(*make_classification(random_state=0))
    >>> [axes.get_title() for axes in plot.search(fitted).axes]
    ['models, by calls', 'models, by seconds', 'best so far', 'parameters']
    """
    kind = figure_class()
    if not hasattr(search, "history_"):
        raise ValueError("search must be fitted: call search.fit(X, y) first.")
    order = np.argsort(search.cv_results_["rank_test_score"], kind="stable")[:max_models]
    ids = search.cv_results_["model_id"]
    chosen = [(ids[i], _shade(place, len(order))) for place, i in enumerate(order)]
    figure = kind(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    _lines(axes[0, 0], search.model_history_, chosen, "partial_fit_calls", "calls")
    _lines(axes[0, 1], search.model_history_, chosen, "elapsed_wall_time", "seconds")
    _best_so_far(axes[1, 0], search.history_)
    _parallel(axes[1, 1], search.cv_results_, order, log_scale)
    return figure


def _shade(place: int, n: int) -> tuple[float, float, float, float]:
    """Return the color of a model: the best is opaque blue, the worst faint gray."""
    share = place / max(1, n - 1)
    return (0.1 + 0.5 * share, 0.3 + 0.3 * share, 0.7 - 0.1 * share, 1.0 - 0.8 * share)


def _lines(
    axes: Any,
    history: Mapping[Any, Sequence[Mapping[str, Any]]],
    chosen: Sequence[tuple[Any, tuple[float, ...]]],
    column: str,
    label: str,
) -> None:
    for model, color in reversed(chosen):
        rows = history[model]
        axes.plot(
            [row[column] for row in rows],
            [row["score"] for row in rows],
            color=color,
            marker="." if len(rows) == 1 else None,
        )
    axes.set(xlabel=label, ylabel="score", title=f"models, by {label}")
    if column == "partial_fit_calls":
        axes.set_xscale("log")


def _best_so_far(axes: Any, history: Sequence[Mapping[str, Any]]) -> None:
    seconds = [row["elapsed_wall_time"] for row in history]
    scores = [-math.inf if math.isnan(row["score"]) else row["score"] for row in history]
    axes.step(seconds, np.maximum.accumulate(scores), where="post")
    axes.set(xlabel="seconds", ylabel="score", title="best so far")


def _parallel(axes: Any, results: Mapping[str, Any], order: Any, log_scale: bool) -> None:
    columns = [name for name in results if name.startswith("param_")]
    heights = [_heights(results[name], log_scale) for name in columns]
    for place in range(len(order) - 1, -1, -1):
        values = [height[order[place]] for height in heights]
        axes.plot(range(len(columns)), values, color=_shade(place, len(order)))
    axes.set(title="parameters", yticks=[], ylim=(-0.05, 1.05))
    names = [name.removeprefix("param_") for name in columns]
    axes.set_xticks(range(len(columns)), names, rotation=20)


def _heights(column: Any, log_scale: bool) -> np.ndarray[Any, Any]:
    """Map the values of one parameter to [0, 1]; the value is NaN where a model lacks it."""
    mask = np.ma.getmaskarray(column)
    values = [None if missing else value for value, missing in zip(column.data, mask, strict=True)]
    present = [value for value in values if value is not None]
    numeric = all(isinstance(v, (int, float, np.number)) for v in present)
    if numeric and not any(isinstance(v, (bool, np.bool_)) for v in present):
        numbers = np.array([math.nan if v is None else float(v) for v in values])
        low, high = np.nanmin(numbers), np.nanmax(numbers)
        if log_scale and low > 0 and high / low > 100:
            numbers, low, high = np.log(numbers), math.log(low), math.log(high)
        return np.asarray((numbers - low) / ((high - low) or 1.0))
    labels = sorted({repr(value) for value in present})
    place = {label: i / max(1, len(labels) - 1) for i, label in enumerate(labels)}
    return np.array([math.nan if v is None else place[repr(v)] for v in values])
