"""The figure of an embedding: every label is beside its point, and none covers another."""

from itertools import combinations

import numpy as np
import pytest

from accelerando import plot


def test_labels_do_not_overlap_and_those_without_a_place_are_left_out():
    positions = np.random.default_rng(0).normal(size=(60, 2))
    figure = plot.embedding(positions, labels=[f"a long name {i}" for i in range(60)])
    panel = figure.axes[0]
    boxes = [text.get_window_extent() for text in panel.texts]
    assert 20 < len(boxes) < 60
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_long_labels_are_cut_and_dollars_are_no_formula():
    figure = plot.embedding([[0, 0], [5, 5]], labels=["x" * 30, "$5"])
    first, second = figure.axes[0].texts
    assert first.get_text() == "x" * 17 + "…"
    assert second.get_text() == "$5"
    assert not second.get_parse_math()


def test_pictures_replace_points(tmp_path):
    from matplotlib.image import imsave
    from matplotlib.offsetbox import AnnotationBbox

    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    imsave(tmp_path / "item.png", pixels)
    images = [pixels, None, tmp_path / "item.png"]
    panel = plot.embedding([[0, 0], [1, 1], [2, 0]], images=images).axes[0]
    boxes = [artist for artist in panel.artists if isinstance(artist, AnnotationBbox)]
    assert [tuple(box.xy) for box in boxes] == [(0, 0), (2, 0)]


def test_uncertainty_is_a_circle_and_items_without_position_are_left_out():
    positions = [[0, 0], [1, 1], [np.nan, np.nan]]
    figure = plot.embedding(positions, uncertainty=[0.5, np.nan, 0.1], labels=["a", "b", "c"])
    panel = figure.axes[0]
    assert [circle.radius for circle in panel.patches] == [0.5]
    assert len(panel.collections[0].get_offsets()) == 2
    assert [text.get_text() for text in panel.texts] == ["a", "b"]


def test_one_dimension_is_a_line():
    panel = plot.embedding([[1.0], [3.0]]).axes[0]
    assert panel.collections[0].get_offsets().tolist() == [[1, 0], [3, 0]]
    assert panel.get_yticks().tolist() == []


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"'positions' parameter .* Got shape \(2,\)"):
        plot.embedding([1.0, 2.0])
    with pytest.raises(ValueError, match=r"'labels' parameter .* of the 2 items. Got 1"):
        plot.embedding([[0, 0], [1, 1]], labels=["a"])
