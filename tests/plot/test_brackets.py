"""The figure of brackets: a line per model, in the order in which brackets begin."""

import pytest
from sklearn.linear_model import SGDClassifier

from accelerando import plot
from accelerando.plot._style import figure_class
from accelerando.search import HyperbandSearchCV
from tests.plot.test_search import SPACES, fitted  # noqa: F401


def test_every_model_is_a_line_with_its_scores(fitted):  # noqa: F811
    figure = plot.brackets(fitted, title="Hyperband")
    panel, bar = figure.axes
    lines = [line for line in panel.lines if line.get_linestyle() == "-" and len(line.get_xdata())]
    drawn = [line for line in lines if line.get_marker() == "None" and line.get_lw() == 1.6]
    assert len(drawn) == 17
    assert sum(len(line.get_xdata()) for line in drawn) == len(fitted.history_)
    assert len({line.get_ydata()[0] for line in drawn}) == 17
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == ["bracket 2", "bracket 1", "bracket 0"]
    assert bar.get_ylabel() == "last score"


def test_axes_can_be_passed_and_a_search_must_be_fitted(fitted):  # noqa: F811
    panel = figure_class()().add_subplot()
    assert plot.brackets(fitted, ax=panel) is panel.get_figure()
    assert panel.lines
    with pytest.raises(ValueError, match="search must be fitted"):
        plot.brackets(HyperbandSearchCV(SGDClassifier(), SPACES))
