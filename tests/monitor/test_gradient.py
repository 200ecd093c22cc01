"""Variance and diversity of gradients, against values computed another way."""

import numpy as np
import pytest

from accelerando.monitor import GradientDiversity, GradientVariance, Observation


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
        found, state = monitor.observe(seen, state)
    assert found[0] == pytest.approx(exact, rel=0.02)
    assert found[1] == pytest.approx(16 * exact, rel=0.02)


def test_variance_forgets():
    seen = Observation(1, 10, None, 1.0, 1.0, 2, 2.0)
    monitor, state = GradientVariance(memory=5), {}
    for _ in range(30):
        _, state = monitor.observe(seen, state)
    for _ in range(60):
        found, state = monitor.observe(seen._replace(parts_square=1.5, grad_square=0.5), state)
    assert found == pytest.approx((10.0, 0.5), rel=1e-3)


@pytest.mark.parametrize("kind", [GradientDiversity, GradientVariance])
def test_a_batch_that_was_not_measured_changes_nothing(kind):
    monitor, seen = kind(), Observation(1, 10, None, 1.0, 1.0, 2, 2.0)
    found, state = monitor.observe(seen, {})
    assert monitor.observe(seen._replace(parts=0, grad_square=9.0), state) == (found, state)
