"""Figure of a hyperparameter search: scores, the best score so far, and the parameters.

The figure reads public attributes of a fitted search only: ``cv_results_``, ``history_`` and
``model_history_``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando.plot._style import COLORS, FAINT, INK, canvas, clean, thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_fitted", "score_colors", "search"]

COLORMAP, NO_SCORE = "viridis_r", "#cccccc"


N_LEADERS = 3


def search(
    search: Any, *, max_models: int = 200, log_scale: bool = True, figure: Any = None
) -> Figure:
    """Draw a fitted search in four panels.

    The panels show the score of each model against calls and against seconds, the best score so
    far, and the parameters of all models as parallel coordinates. The color is the final score, and
    the three leaders have their names.

    Parameters
    ----------
    search : fitted search
        Any search of :mod:`accelerando.search`.
    max_models : int, default=200
        Draw at most this many models: those with the best scores.
    log_scale : bool, default=True
        Draw parameters that span more than two decades on a logarithmic axis.
    figure : Figure or SubFigure of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("search.png")``. A notebook shows it.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import SGDClassifier
    >>> from accelerando import plot
    >>> from accelerando.search import IncrementalSearchCV
    >>> fitted = IncrementalSearchCV(
    ...     SGDClassifier(), {"alpha": [1e-4, 1e-2]}, "grid", max_iter=2, client=None
    ... ).fit(*make_classification(random_state=0))
    >>> [axes.get_xlabel() for axes in plot.search(fitted).axes[:4]]
    ['partial_fit calls of a model', 'seconds', 'seconds', 'parameters']
    """
    check_fitted(search)
    order = np.argsort(search.cv_results_["rank_test_score"], kind="stable")[:max_models]
    ids = search.cv_results_["model_id"]
    finals = [float(search.model_history_[ids[i]][-1]["score"]) for i in order]
    colors, scale = score_colors(finals)
    chosen = [(ids[i], color) for i, color in zip(order, colors, strict=True)]
    figure = canvas(figure, 11, 7.5)
    grid = figure.add_gridspec(2, 3, width_ratios=(1, 1, 0.03))
    upper = [figure.add_subplot(grid[0, column]) for column in (0, 1)]
    best, parameters = (figure.add_subplot(grid[1, column]) for column in (0, 1))
    _lines(upper[0], search.model_history_, chosen, "partial_fit_calls")
    _lines(upper[1], search.model_history_, chosen, "elapsed_wall_time")
    _best_so_far(best, search.history_)
    _name_leaders(best, [str(ids[i]) for i in order], finals)
    _parallel(parameters, search.cv_results_, order, colors, log_scale)
    bar = figure.colorbar(scale, cax=figure.add_subplot(grid[:, 2]))
    bar.set_label("final score", color=INK, fontsize=10)
    bar.outline.set_visible(False)
    return figure  # type: ignore[no-any-return]


def check_fitted(search: Any) -> None:
    """Raise ValueError unless a search is fitted."""
    if not hasattr(search, "history_"):
        raise ValueError("search must be fitted: call search.fit(X, y) first.")


def score_colors(scores: Sequence[float]) -> tuple[list[Any], Any]:
    """Return a color for each score and the scale of the colors; NaN is gray.

    The scale begins at the median: models that were dropped early are many, and all alike.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    known = [score for score in scores if math.isfinite(score)]
    low, high = (float(np.median(known)), max(known)) if known else (0.0, 1.0)
    scale: Any = ScalarMappable(
        Normalize(low, high if high > low else low + 1e-9), colormaps[COLORMAP]
    )
    return [scale.to_rgba(s) if math.isfinite(s) else NO_SCORE for s in scores], scale


def _lines(
    axes: Any,
    history: Mapping[Any, Sequence[Mapping[str, Any]]],
    chosen: Sequence[tuple[Any, Any]],
    column: str,
) -> None:
    for model, color in reversed(chosen):
        rows = history[model]
        axes.plot(
            [row[column] for row in rows],
            [row["score"] for row in rows],
            color=color,
            lw=1.2,
            marker="." if len(rows) == 1 else None,
        )
    from matplotlib.ticker import NullFormatter

    clean(axes)
    by_calls = column == "partial_fit_calls"
    axes.set(xlabel="partial_fit calls of a model" if by_calls else "seconds", ylabel="score")
    if by_calls:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(thousands)
        axes.xaxis.set_minor_formatter(NullFormatter())
    for place, (model, color) in reversed(list(enumerate(chosen[:N_LEADERS], start=1))):
        last = history[model][-1]
        if math.isfinite(last["score"]):
            at = (last[column], last["score"])
            axes.plot(*at, "o", color=color, ms=10, mec="white", zorder=4)
            text = {"ha": "center", "va": "center_baseline", "fontsize": 7, "color": "white"}
            axes.annotate(str(place), at, zorder=5, **text)


def _best_so_far(axes: Any, history: Sequence[Mapping[str, Any]]) -> None:
    seconds = [row["elapsed_wall_time"] for row in history]
    scores = [-math.inf if math.isnan(row["score"]) else row["score"] for row in history]
    axes.step(seconds, np.maximum.accumulate(scores), where="post", color=COLORS[0], lw=2)
    clean(axes)
    axes.set(xlabel="seconds", ylabel="best score so far")


def _name_leaders(axes: Any, names: Sequence[str], scores: Sequence[float]) -> None:
    """List the leaders, whose numbers are in the panels above, where no curve is."""
    best = list(enumerate(zip(names, scores, strict=True), start=1))[:N_LEADERS]
    lines = [f"{place}. {name}: {score:.4g}" for place, (name, score) in best]
    axes.annotate(
        "\n".join(["leaders", *lines]),
        (0.97, 0.05),
        xycoords="axes fraction",
        ha="right",
        va="bottom",
        multialignment="left",
        fontsize=9,
        color=INK,
        parse_math=False,
    )


def _parallel(
    axes: Any, results: Mapping[str, Any], order: Any, colors: Sequence[Any], log_scale: bool
) -> None:
    columns = [name for name in results if name.startswith("param_")]
    heights = [_heights(results[name], log_scale) for name in columns]
    for place in range(len(order) - 1, -1, -1):
        values = [height[order[place]] for height in heights]
        axes.plot(range(len(columns)), values, color=colors[place], lw=1.1)
    clean(axes)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set(yticks=[], ylim=(-0.12, 1.12), xlabel="parameters")
    names = [name.removeprefix("param_") for name in columns]
    axes.set_xticks(range(len(columns)), [_two_lines(name) for name in names])
    for position, name in enumerate(columns):
        axes.axvline(position, color=FAINT, lw=0.8, zorder=0)
        low, high = _ends(results[name])
        for text, height, side in ((low, -0.03, "top"), (high, 1.03, "bottom")):
            axes.text(
                position,
                height,
                text,
                ha="center",
                va=side,
                fontsize=8,
                color=INK,
                parse_math=False,
            )


def _two_lines(name: str) -> str:
    """Break a long name at the underscore that is nearest to its middle."""
    gaps = [i for i, letter in enumerate(name) if letter == "_" and 0 < i < len(name) - 1]
    if len(name) <= 12 or not gaps:
        return name
    middle = min(gaps, key=lambda i: abs(i - len(name) / 2))
    return f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def _ends(column: Any) -> tuple[str, str]:
    """Return the smallest and the largest value of a parameter as short texts."""
    mask = np.ma.getmaskarray(column)
    present = [value for value, missing in zip(column.data, mask, strict=True) if not missing]
    if all(isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in present):
        return f"{min(present):.3g}", f"{max(present):.3g}"
    labels = sorted({value if isinstance(value, str) else repr(value) for value in present})
    return labels[0][:14], labels[-1][:14]


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
