"""The demo's figure: bars, curves and a map, each with the results' numbers."""

import math

import numpy as np

from accelerando.demo import _train
from accelerando.demo._crowd import Asked
from accelerando.demo._picture import draw


def panels(figure):
    return {axes.get_xlabel(): axes for axes in figure.get_axes()}


def test_it_has_a_column_for_each_block(results):
    figure = draw(results)
    headings = [part.get_suptitle() for part in figure.subfigs]
    assert [text.split(":")[0] for text in headings] == ["Train", "Search", "Ask"]
    found = panels(figure)
    assert set(found) == {"model updates", "seconds", "partial_fit calls", "", "answers needed"}
    bars = [bar.get_width() for bar in found["model updates"].patches]
    assert bars == [_train.reached(frames).updates for frames in results.training.values()]
    labels = [text.get_text() for text in found["model updates"].get_yticklabels()]
    assert labels == list(results.training)
    curves = [line.get_ydata()[-1] for line in found["partial_fit calls"].lines]
    assert curves == [curve[-1] for (curve,) in results.searches.values()]
    assert len(found[""].collections[0].get_offsets()) == 30


def test_a_goal_that_was_missed_is_written_and_no_bar(results):
    figure = draw(results._replace(crowds={"chosen": [Asked(math.nan, np.zeros((30, 2)))]}))
    panel = panels(figure)["answers needed"]
    assert [text.get_text() for text in panel.texts] == ["not reached"]
