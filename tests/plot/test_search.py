"""The figure of a search: one line per model, and only public attributes of the search."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import loguniform, uniform
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier

from accelerando import plot
from accelerando.plot._search import NO_SCORE, _heights, _two_lines, score_colors
from accelerando.search import HyperbandSearchCV

SPACES = [
    {"alpha": loguniform(1e-6, 1), "penalty": ["l1", "l2"]},
    {"alpha": loguniform(1e-6, 1), "l1_ratio": uniform(0, 1), "average": [True, False]},
]


@pytest.fixture(scope="module")
def fitted():
    X, y = make_classification(n_samples=200, n_classes=3, n_informative=5, random_state=0)
    search = HyperbandSearchCV(SGDClassifier(), SPACES, max_iter=9, client=None, random_state=0)
    return search.fit(X, y)


def test_a_search_must_be_fitted():
    with pytest.raises(ValueError, match="search must be fitted"):
        plot.search(HyperbandSearchCV(SGDClassifier(), SPACES))


def test_the_figure_has_a_line_per_model(fitted):
    figure = plot.search(fitted)
    assert isinstance(figure, Figure)
    calls, seconds, best, parameters, bar = figure.axes
    assert len(calls.lines) == len(seconds.lines) == 17 + 3  # a dot for each leader
    assert len(parameters.lines) == 17 + 4  # a line for each parameter
    assert bar.get_ylabel() == "final score"
    assert all(panel.get_xlabel() for panel in figure.axes[:4])
    assert all(panel.get_ylabel() for panel in (calls, seconds, best))
    assert [tick.get_text() for tick in parameters.get_xticklabels()] == [
        "alpha", "average", "l1_ratio", "penalty",
    ]  # fmt: skip


def test_the_best_score_never_falls_and_ignores_nan(fitted):
    steps = plot.search(fitted).axes[2].lines[0].get_ydata()
    assert np.all(np.diff(steps) >= 0)
    assert steps[-1] >= fitted.best_score_
    rows = [{"elapsed_wall_time": t, "score": s} for t, s in enumerate([0.5, math.nan, 0.4])]
    public = {"cv_results_": fitted.cv_results_, "model_history_": fitted.model_history_}
    figure = plot.search(SimpleNamespace(history_=rows, **public))
    assert figure.axes[2].lines[0].get_ydata().tolist() == [0.5, 0.5, 0.5]


def test_the_best_models_are_drawn_when_there_are_too_many(fitted):
    best, _ = plot.search(fitted, max_models=1).axes[0].lines
    model = fitted.cv_results_["model_id"][fitted.best_index_]
    assert best.get_ydata()[-1] == fitted.model_history_[model][-1]["score"]
    assert len(plot.search(fitted, max_models=5).axes[0].lines) == 5 + 3


def test_leaders_are_numbered_and_named(fitted):
    figure = plot.search(fitted)
    assert [text.get_text() for text in figure.axes[0].texts] == ["3", "2", "1"]
    (text,) = figure.axes[2].texts
    first = fitted.cv_results_["model_id"][fitted.best_index_]
    assert text.get_text().splitlines()[1] == f"1. {first}: {fitted.best_score_:.4g}"


def test_the_color_is_the_score_and_models_without_one_are_gray():
    colors, scale = score_colors([0.1, 0.5, 0.9, math.nan])
    assert scale.norm(0.5) == 0.0
    assert colors[0] == colors[1] != colors[2]
    assert colors[3] == NO_SCORE
    assert len(score_colors([math.nan])[0]) == 1


def test_parameters_have_their_ranges(fitted):
    texts = [text.get_text() for text in plot.search(fitted).axes[3].texts]
    alphas = fitted.cv_results_["param_alpha"].compressed()
    assert texts[:2] == [f"{min(alphas):.3g}", f"{max(alphas):.3g}"]
    assert texts[-2:] == ["l1", "l2"]


def test_long_names_are_broken_in_the_middle():
    assert _two_lines("learning_rate_init") == "learning_\nrate_init"
    assert _two_lines("alpha") == "alpha"


def test_heights_of_parameters():
    def column(*values):
        return np.ma.MaskedArray(np.array(values, dtype=object), [v is None for v in values])

    assert _heights(column(1.0, 10.0, 1000.0), True) == pytest.approx([0, 1 / 3, 1])
    assert _heights(column(1.0, 10.0, 1000.0), False) == pytest.approx([0, 9 / 999, 1])
    assert _heights(column(1.0, 3.0, 5.0), True) == pytest.approx([0, 0.5, 1])
    assert _heights(column("b", "a", "c"), True) == pytest.approx([0.5, 0, 1])
    assert _heights(column(True, False), True) == pytest.approx([1, 0])
    assert np.isnan(_heights(column(2.0, None), True)[1])
