"""The figure of workers: what the batches were worth within the bounds, and what there was."""

from types import SimpleNamespace

import pandas as pd
import pytest

from accelerando import plot

FRAME = pd.DataFrame(
    {"seconds": [1.0, 2.0, 3.0], "batch_size": [100, 250, 1000], "ranks": [1, 2, 4]}
)


def drawn(figure):
    return [line.get_ydata().tolist() for line in figure.axes[0].lines]


def test_wanted_and_had_are_labeled_steps():
    figure = plot.workers(FRAME, examples_per_worker=100)
    assert drawn(figure) == [[1, 3, 10], [1, 2, 4]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["wanted", "had"]


def test_the_bounds_of_the_estimator_hold():
    net = SimpleNamespace(
        updates_frame=lambda: FRAME, examples_per_worker=100, min_workers=2, max_workers=8
    )
    assert drawn(plot.workers(net))[0] == [2, 3, 8]
    assert drawn(plot.workers(net, examples_per_worker=500))[0] == [2, 2, 2]


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"'run' parameter of workers .* Got int"):
        plot.workers(3)
    with pytest.raises(ValueError, match=r"'examples_per_worker' parameter of workers .* Got None"):
        plot.workers(FRAME)
