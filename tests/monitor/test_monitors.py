"""What single monitors say, against values computed another way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accelerando.monitor import (
    CommunicationTime,
    GradientDiversity,
    GradientVariance,
    LossTrend,
    Observation,
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


def test_diversity_of_a_batch_is_that_of_its_rows():
    """Averaged over many ways to halve one batch, the estimate is the exact diversity."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(16, 5)) + 0.5
    exact = (rows**2).sum() / (rows.sum(axis=0) ** 2).sum()
    mean = rows.mean(axis=0)
    monitor, state = GradientDiversity(memory=1e9), {}
    for _ in range(4000):
        halves = np.split(rng.permutation(rows), 2)
        weighted = np.mean([(half.mean(axis=0) ** 2).sum() for half in halves])
        seen = Observation(1, 16, None, 1.0, float(mean @ mean), 2, float(weighted))
        told, state = monitor.observe(seen, state)
    assert told[0] == pytest.approx(exact, rel=0.02)
    assert told[1] == pytest.approx(16 * exact, rel=0.02)


def test_variance_forgets():
    seen = Observation(1, 10, None, 1.0, 1.0, 2, 2.0)
    monitor, state = GradientVariance(memory=5), {}
    for _ in range(30):
        _, state = monitor.observe(seen, state)
    for _ in range(60):
        told, state = monitor.observe(seen._replace(parts_square=1.5, grad_square=0.5), state)
    assert told == pytest.approx((10.0, 0.5), rel=1e-3)


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
    told, _ = monitor.observe(seen._replace(seconds=3.0, wait_seconds=1.0), state)
    assert told == (0.5, 0.25)
