"""Moments of the gradient: unbiased for parts of any sizes."""

import numpy as np
import pytest

from accelerando.monitor import Observation
from accelerando.monitor._moments import moments


@pytest.mark.parametrize("shares", [(32, 32), (1, 63), (5, 20, 39), (64, 0), (10, 0, 54)])
def test_moments_are_unbiased_under_uneven_shards(shares):
    rng = np.random.default_rng(5)
    gradient, deviation = np.array([0.6, 0.8, 0.0]), np.array([1.0, 2.0, 3.0])
    rows = gradient + rng.normal(size=(4000, 64, 3)) * deviation
    parts = np.split(rows, np.cumsum(shares)[:-1], axis=1)
    held = [part for part in parts if part.shape[1]]
    square = (rows.mean(axis=1) ** 2).sum(axis=1)
    weighted = sum(part.shape[1] * (part.mean(axis=1) ** 2).sum(axis=1) for part in held) / 64
    found = [
        moments(Observation(1, 64, None, 1.0, whole, len(held), of_parts))
        for whole, of_parts in zip(square.tolist(), weighted.tolist(), strict=True)
    ]
    if len(held) == 1:
        assert set(found) == {None}
        return
    variance, square = np.mean(found, axis=0)
    assert variance == pytest.approx(14.0, rel=0.05)
    assert square == pytest.approx(1.0, rel=0.05)
    assert min(one.variance for one in found) >= 0


def test_a_batch_that_is_the_training_set_has_no_sampling_error():
    seen = Observation(1, 64, 64, 1.0, 2.0, parts=2, parts_square=3.0)
    assert moments(seen).square == 2.0
    assert moments(seen._replace(n_examples=128)).square == 2.0 - (1 / 64 - 1 / 128) * 64
