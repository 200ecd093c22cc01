"""Quantities that drift, from measurements with much noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accelerando.monitor._trend import begin, estimate, measured, predicted


def followed(truth, noise, rng):
    """Return mean and standard error of the logarithm after each noisy measurement of `truth`."""
    bank, found = begin(math.log(max(truth[0], 0.1)), 2.0), []
    for value in truth:
        bank = predicted(bank, 1)
        bank = measured(bank, float(value + noise * rng.normal()), noise**2)
        mean, variance = estimate(bank)
        found.append((mean, math.sqrt(variance)))
    return np.array(found).T


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_a_constant_is_found_and_its_error_is_honest(noise):
    rng = np.random.default_rng(0)
    off, stated = [], []
    for _ in range(40):
        mean, error = followed(np.ones(400), noise, rng)
        off.append(mean[-1])
        stated.append(error[-1])
    assert np.std(off) < 1.2 * np.mean(stated)
    assert np.mean(stated) < 0.4
    assert np.mean(np.abs(off) < 1.96 * np.array(stated)) >= 0.9


def test_a_fall_by_a_factor_of_a_thousand_is_followed_within_the_stated_error():
    rng = np.random.default_rng(1)
    truth = np.exp(-np.linspace(0.0, math.log(1000.0), 700))
    inside, close = [], []
    for _ in range(10):
        bank = begin(0.0, 1.0)
        for k, value in enumerate(truth):
            noise = 0.5 * value  # as that of a gradient, it falls with the quantity
            bank = measured(predicted(bank, 1), float(value + noise * rng.normal()), noise**2)
            if k > 50:
                mean, variance = estimate(bank)
                inside.append(abs(mean - math.log(value)) < 1.96 * math.sqrt(variance))
                close.append(abs(mean - math.log(value)) < math.log(1.5))
    assert np.mean(inside) > 0.85
    assert np.mean(close) > 0.95


def test_a_jump_is_believed_after_some_measurements():
    rng = np.random.default_rng(2)
    truth = np.concatenate([np.ones(200), np.full(60, 20.0)])
    mean, _ = followed(truth, 0.3, rng)
    assert abs(mean[199]) < 0.2
    assert mean[-1] == pytest.approx(math.log(20.0), abs=0.2)


def test_without_measurements_the_error_grows():
    bank = begin(0.0, 0.01)
    errors = [estimate(predicted(bank, k)).variance for k in (1, 10, 100)]
    assert errors == sorted(errors)
    assert errors[2] > 2 * errors[0]


def test_negative_measurements_lower_the_estimate_and_never_break_it():
    bank = begin(0.0, 2.0)
    for _ in range(200):
        bank = measured(predicted(bank, 1), -1.0, 1.0)
    mean, variance = estimate(bank)
    assert mean < -1.0
    assert math.isfinite(mean)
    assert 0.0 < variance < math.inf
