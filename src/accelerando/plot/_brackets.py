"""Figure of a search's brackets over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerando.plot._search import check_fitted, score_colors
from accelerando.plot._style import INK, clean, headline, single_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def brackets(search: Any, *, title: str | None = None, ax: Any = None) -> Figure:
    """Draw when a search trained each model, bracket by bracket.

    A line is a model, from its first to its last score, and a dot is a score. The color is the
    model's last score. Models that a bracket dropped end early.

    Parameters
    ----------
    search : fitted search
        Any search of :mod:`accelerando.search`.
    title : str, optional
        The title of the figure.
    ax : Axes of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("brackets.png")``. A notebook shows it.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import SGDClassifier
    >>> from accelerando import plot
    >>> from accelerando.search import HyperbandSearchCV
    >>> fitted = HyperbandSearchCV(
    ...     SGDClassifier(), {"alpha": loguniform(1e-5, 1)}, max_iter=3, client=None
    ... ).fit(*make_classification(random_state=0))
    >>> [label.get_text() for label in plot.brackets(fitted).axes[0].get_yticklabels()]
    ['bracket 1', 'bracket 0']
    """
    check_fitted(search)
    rows = search.model_history_
    begun: dict[Any, list[Any]] = {}
    for model, bracket in zip(
        search.cv_results_["model_id"], search.cv_results_["bracket"], strict=True
    ):
        begun.setdefault(int(bracket), []).append(model)
    colors, scale = score_colors([float(rows[model][-1]["score"]) for model in rows])
    color_of = dict(zip(rows, colors, strict=True))
    n_models = sum(map(len, begun.values()))
    figure, panel = single_panel(ax, 8.5, min(8.0, 1.4 + 0.06 * n_models + 0.35 * len(begun)))
    height, middles = 0.0, []
    for bracket in sorted(begun, reverse=True):  # in the order in which they begin
        models = sorted(begun[bracket], key=lambda model: -rows[model][-1]["partial_fit_calls"])
        middles.append((height + (len(models) - 1) / 2, f"bracket {bracket}"))
        for model in models:
            seconds = [row["elapsed_wall_time"] for row in rows[model]]
            panel.plot(seconds, [height] * len(seconds), "-", color=color_of[model], lw=1.6)
            panel.plot(seconds, [height] * len(seconds), "|", color=color_of[model], ms=5)
            height += 1
        panel.axhline(height + 0.5, color="#dddddd", lw=0.8)
        height += 2
    clean(panel)
    panel.grid(visible=False)
    panel.set_yticks([middle for middle, _ in middles], [name for _, name in middles])
    panel.tick_params(axis="y", length=0)
    panel.invert_yaxis()
    panel.set(xlabel="seconds")
    bar = figure.colorbar(scale, ax=panel, fraction=0.03, pad=0.02)
    bar.set_label("last score", color=INK, fontsize=10)
    bar.outline.set_visible(False)
    headline(figure, title)
    return figure  # type: ignore[no-any-return]
