"""The figure of a prediction: both curves, and by how much the plan was wrong."""

import pandas as pd
import pytest

from accelerando import cost, plot

PLANNED = cost.plan(64, n_examples=640, max_epochs=4, parameters=10, seconds_per_example=0.001)


def measured(*seconds):
    return pd.DataFrame({"epoch": range(1, len(seconds) + 1), "seconds": seconds})


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ((0.64, 1.6), "measured, 25 % more"),
        ((0.64, 1.28, 0.96 * 1.92), "measured, 4 % less"),
    ],
)
def test_the_difference_is_that_of_the_last_common_epoch(seconds, says):
    panel = plot.prediction(PLANNED, measured(*seconds)).axes[0]
    assert [text.get_text() for text in panel.texts] == ["predicted", says]
    assert [len(line.get_xdata()) for line in panel.lines] == [4, len(seconds)]


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"'planned' parameter .* Got int"):
        plot.prediction(3, measured(1.0))
    with pytest.raises(TypeError, match=r"'run' parameter .* Got int"):
        plot.prediction(PLANNED, 3)
    with pytest.raises(ValueError, match="no epoch in common"):
        plot.prediction(PLANNED, measured(1.0).assign(epoch=9))
