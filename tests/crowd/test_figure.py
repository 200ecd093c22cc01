"""Figures of embeddings."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from accelerando.crowd._figure import draw_embedding


@pytest.fixture
def drawn(monkeypatch):
    """Figures that were saved."""
    figures = []
    original = Figure.savefig

    def savefig(self, *arguments, **options):
        figures.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def test_items_are_drawn_at_their_positions_with_short_labels(tmp_path, drawn):
    positions = np.array([[0.0, 1.0, 9.0], [2.0, 3.0, 9.0]])
    file = tmp_path / "map.png"
    draw_embedding(positions, file, labels=["cost: 3 $ to 5 $", "x" * 40], title="Two items")
    assert file.read_bytes().startswith(b"\x89PNG")
    (axes,) = drawn[0].axes
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), positions[:, :2])
    assert [text.get_text() for text in axes.texts] == ["cost: 3 $ to 5 $", "x" * 17 + "…"]
    assert not any(text.get_parse_math() for text in axes.texts)  # a dollar sign is no LaTeX
    assert axes.get_title() == "Two items"


def test_one_dimension_is_a_line_and_many_items_have_no_labels(tmp_path, drawn):
    draw_embedding(np.arange(200.0)[:, None], tmp_path / "line.png", labels=["a"] * 200)
    (axes,) = drawn[0].axes
    assert set(axes.collections[0].get_offsets()[:, 1]) == {0.0}
    assert len(axes.texts) == 0
