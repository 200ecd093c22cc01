"""Style of figures, and the error without matplotlib."""

import sys

import pytest

from accelerando import plot
from accelerando.plot._style import COLORS, figure_class, headline, integer_ticks, log_if_wide
from tests.plot.test_training import frame


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'accelerando\[plot\]'"):
        plot.training(frame())


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 20], "log"),
        ([1, 19], "linear"),
        ([0, 100], "linear"),
        ([], "linear"),
        ([1, 2, float("inf")], "linear"),
    ],
)
def test_a_wide_range_gets_a_logarithmic_scale(values, scale):
    panel = figure_class()().add_subplot()
    log_if_wide(panel, values)
    assert panel.get_yscale() == scale


def test_ticks_are_integers():
    panel = figure_class()().add_subplot()
    panel.plot([1, 2], [0, 1])
    integer_ticks(panel)
    assert all(float(tick).is_integer() for tick in panel.get_xticks())


def test_a_title_is_drawn_if_there_is_one():
    figure = figure_class()()
    headline(figure, None)
    assert figure.get_suptitle() == ""
    headline(figure, "A run")
    assert figure.get_suptitle() == "A run"


def test_colors_are_distinct():
    assert len(set(COLORS)) == len(COLORS)
