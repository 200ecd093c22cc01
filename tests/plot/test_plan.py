"""The figures of plans and comparisons."""

import pytest

from accelerando import plot
from accelerando.batch_size import GeoDamp
from accelerando.cost import Network, compare, plan

SMALL = {"n_examples": 1000, "max_epochs": 2, "parameters": 250_000, "seconds_per_example": 0.001}
GROWING = {"examples_per_worker": 10, "max_workers": 5, **SMALL}


def labels(figure):
    return [panel.get_ylabel() for panel in figure.axes]


def test_a_plan_is_drawn_over_epochs():
    found = plan(GeoDamp(10, 1, 5), **GROWING)
    figure = plot.plan(found)
    assert labels(figure) == ["batch size", "workers", "hours", "worker-hours"]
    assert figure.axes[0].lines[0].get_ydata().tolist() == [10, 50]
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[2].lines[0].get_ydata()[-1] == pytest.approx(found.seconds / 3600)


def test_a_price_replaces_the_worker_hours():
    found = plan(GeoDamp(10, 1, 5), **GROWING, price_per_worker_hour=2.0)
    figure = plot.plan(found)
    assert labels(figure)[-1] == "price ($)"
    assert labels(plot.plan(found, currency="€"))[-1] == "price (€)"
    assert figure.axes[3].lines[0].get_ydata()[-1] == pytest.approx(found.price)
    assert labels(plot.plan(compare(found, [1, 2]))) == ["hours", "price ($)"]


def test_a_comparison_is_drawn_over_workers_with_the_knee():
    slow = plan(1000, **{**GROWING, "network": Network(1e9, 0.01)})
    found = compare(slow, [1, 2, 4, 8, 16, 32, 64])
    figure = plot.plan(found)
    assert labels(figure) == ["hours", "worker-hours"]
    curve, knee = figure.axes[0].lines
    assert curve.get_xdata().tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert knee.get_xdata().tolist() == [found.knee.setting.max_workers]


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="'planned' parameter of plan must be the result of plan"):
        plot.plan(3)
