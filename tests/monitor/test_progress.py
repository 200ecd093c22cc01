"""Trend, throughput, waiting and spread, against values computed another way."""

import math

import numpy as np
import pytest

from accelerando.monitor import (
    CommunicationTime,
    LossTrend,
    Observation,
    ParameterSpread,
    Throughput,
    watch,
)


def test_the_trend_is_a_weighted_least_squares_line():
    rng = np.random.default_rng(0)
    losses = [float(3 - 0.02 * k + rng.normal()) for k in range(60)]
    ages = np.arange(60)[::-1]
    slope, _ = np.polyfit(-ages, losses, 1, w=np.sqrt(0.9**ages))  # polyfit squares its weights
    row = watch(LossTrend(memory=10), losses)[-1]
    assert row["loss_trend"] == pytest.approx(slope, rel=1e-6)
    assert row["loss_average"] == pytest.approx(np.average(losses, weights=0.9**ages))


def test_one_loss_has_no_trend():
    assert math.isnan(watch(LossTrend(), [1.0])[0]["loss_trend"])


def test_throughput_begins_again_when_ranks_or_batch_change():
    seen = Observation(1, 10, None, 1.0, 1.0, seconds=1.0, ranks=1)
    monitor = Throughput()
    _, state = monitor.observe(seen, {})
    (speed, seconds), state = monitor.observe(seen._replace(ranks=2, seconds=0.5), state)
    assert (speed, seconds) == (20.0, 0.5)
    (speed, _), state = monitor.observe(
        seen._replace(ranks=2, seconds=math.nan, batch_size=20), state
    )
    assert math.isnan(speed)


def test_waiting_is_a_share_of_means():
    monitor, state = CommunicationTime(), {}
    seen = Observation(1, 10, None, 1.0, 1.0, seconds=1.0, wait_seconds=0.0)
    _, state = monitor.observe(seen, state)
    found, _ = monitor.observe(seen._replace(seconds=3.0, wait_seconds=1.0), state)
    assert found == (0.5, 0.25)


def test_the_spread_is_the_last_one_that_was_measured():
    seen = Observation(1, 10, None, 1.0, 1.0)
    monitor = ParameterSpread()
    found, state = monitor.observe(seen, {})
    assert math.isnan(found[0])
    _, state = monitor.observe(seen._replace(spread=0.5), state)
    assert monitor.observe(seen, state)[0] == (0.5,)


@pytest.mark.parametrize("every", [0, 1.5, True])
def test_a_wrong_period_of_the_spread_is_named(every):
    with pytest.raises(ValueError, match="'every' parameter of ParameterSpread must be an integer"):
        ParameterSpread(every=every)
