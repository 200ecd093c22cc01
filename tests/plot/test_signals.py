"""The figure of the signals of a run."""

import pandas as pd
import pytest

from accelerando import plot
from accelerando.monitor import GradientVariance, LossTrend
from tests.nets import regressor


def test_signals_draws_a_panel_for_each_signal(line):
    net = regressor(monitors=[LossTrend(), GradientVariance()], micro_batch_size=8).fit(*line)
    figure = plot.signals(net, title="A run")
    names = [panel.get_ylabel() for panel in figure.axes]
    assert names[:4] == ["loss", "batch size", "lr", "ranks"]
    assert names[4:] == ["loss average", "loss trend", "gradient variance", "gradient square"]
    assert len(plot.signals(net.updates_frame(), ["loss"]).axes) == 1
    with pytest.raises(ValueError, match="'names' parameter of signals must be a list of columns"):
        plot.signals(net, ["nothing"])
    with pytest.raises(TypeError, match=r"'run' .* must be a fitted estimator or its updates_f"):
        plot.signals(3)


def test_without_monitors_only_the_usual_columns_are_drawn(line):
    """Columns that the engine adds for everybody are not signals of monitors."""
    figure = plot.signals(regressor(max_epochs=1).fit(*line))
    assert [panel.get_ylabel() for panel in figure.axes] == ["loss", "batch size", "lr", "ranks"]


def test_the_noise_scale_is_drawn_with_its_interval_and_the_batch_size():
    frame = pd.DataFrame(
        {"update": [1, 2], "noise_scale": [5.0, 6.0], "noise_scale_error": 0.1, "batch_size": 4}
    )
    (panel,) = plot.signals(frame, ["noise_scale"]).axes
    assert len(panel.lines) == 2
    assert [text.get_text() for text in panel.texts] == ["noise scale", "batch size"]
    heights = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((5 * (1 - 0.196), 6 * 1.196))


def test_a_signal_that_is_known_in_some_updates_only_is_one_line():
    frame = pd.DataFrame({"update": range(1, 7), "spread": [float("nan"), 1.0] * 3})
    (panel,) = plot.signals(frame, ["spread"]).axes
    assert panel.lines[0].get_xdata().tolist() == [2, 4, 6]
    assert panel.lines[0].get_ydata().tolist() == [1.0, 1.0, 1.0]
