"""Style of figures, and the error without matplotlib."""

import sys

import pytest

from accelerando import plot
from accelerando.plot._style import (
    COLORS,
    figure_class,
    headline,
    integer_ticks,
    label_ends,
    log_if_wide,
    single_panel,
    spread,
)
from tests.plot.test_training import frame


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
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


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.9, 0.1], [0.9, 0.1]),
        ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),
        ([1.0, 1.0], [0.9, 1.0]),
        ([0.0, 0.05, 0.12], [0.0, 0.1, 0.2]),
        ([2.0, -1.0], [1.0, 0.0]),
    ],
)
def test_labels_keep_their_distance_order_and_panel(heights, expected):
    assert spread(heights, 0.1) == pytest.approx(expected)


def test_more_labels_than_fit_share_the_panel():
    found = spread([0.5] * 21, 0.1)
    assert (min(found), max(found)) == pytest.approx((0.0, 1.0))


def test_a_label_is_at_the_height_of_its_curve_and_missing_values_have_none():
    panel = figure_class()().add_subplot()
    panel.set_ylim(0, 10)
    label_ends(panel, [("a", "red", 5.0), ("b", "blue", float("nan"))])
    (text,) = panel.texts
    assert (text.get_text(), text.get_color()) == ("a", "red")
    assert text.xy == (1.02, pytest.approx(0.5))


def test_axes_of_the_user_are_used_and_other_things_refused():
    panel = figure_class()().add_subplot()
    assert single_panel(panel, 1, 1) == (panel.get_figure(), panel)
    with pytest.raises(TypeError, match=r"'ax' parameter must be Axes of matplotlib. Got str"):
        single_panel("ax", 1, 1)
