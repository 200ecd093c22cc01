"""The noise scale against gradients whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from accelerando.monitor import GradientNoiseScale, Observation

DIRECTIONS = 1000


def updates(rng, ranks, rows, noise_scale, count):
    """Yield updates with Gaussian gradients of |g| = 1 in a thousand directions, N infinite.

    The mean gradient and the scatter of the ranks around it are independent, so that their squared
    norms can be drawn directly.
    """
    batch = ranks * rows
    variance = noise_scale / DIRECTIONS  # of a row, in each direction
    along = 1.0 + rng.normal(size=count) * math.sqrt(variance / batch)
    across = rng.chisquare(DIRECTIONS - 1, size=count) * variance / batch
    between = rng.chisquare((ranks - 1) * DIRECTIONS, size=count) * variance / batch
    for square, scatter in zip(along**2 + across, between, strict=True):
        yield Observation(
            update=1,
            batch_size=batch,
            n_examples=None,
            loss=1.0,
            grad_square=float(square),
            parts=ranks,
            parts_square=float(square + scatter),
        )


def watched(seen, monitor=None):
    monitor = monitor or GradientNoiseScale()
    state, found = monitor.start(), []
    for one in seen:
        values, state = monitor.observe(one, state)
        found.append(values)
    return np.array(found)


TRIALS = [(2, 32, 64, 300), (2, 32, 1000, 4000), (8, 32, 1000, 2000)]


@pytest.mark.parametrize(("ranks", "rows", "truth", "count"), TRIALS)
def test_within_ten_percent_of_the_truth_and_never_negative(ranks, rows, truth, count):
    """The trials of the peers, whose estimators were off by up to 2.4 times, or negative."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        scale, _, low = watched(updates(rng, ranks, rows, truth, count)).T
        assert abs(scale[-1] / truth - 1) < 0.1
        assert not (scale < 0).any()
        assert not (low < 0).any()


def test_far_above_the_batch_it_says_nothing_before_it_says_something_wrong():
    """At 10,000 with 64 rows the peers' estimates are negative in up to 42 % of the updates."""
    rng = np.random.default_rng(1)
    known = []
    for _ in range(10):
        scale, error, low = watched(updates(rng, 2, 32, 10_000, 3000)).T
        assert not (scale < 0).any()
        assert (low[7:] > 0).all()
        known += (scale / 10_000)[~np.isnan(scale)].tolist()
        assert np.nanmin(error, initial=1.0) > 0.05, "so few updates cannot tell"
    assert 0.5 < np.median(known) < 2.0


def test_its_error_is_the_one_it_states():
    rng = np.random.default_rng(2)
    last = np.array([watched(updates(rng, 2, 32, 1000, 1500))[-1] for _ in range(40)])
    stated, seen = last[:, 1].mean(), last[:, 0].std() / 1000
    assert 0.6 < seen / stated < 1.6
    assert (last[:, 2] < 1000).mean() > 0.9


def test_memory_grows_with_the_noise():
    rng = np.random.default_rng(3)
    lengths = {}
    for truth in (16, 1000):
        monitor, state = GradientNoiseScale(), {}
        for seen in updates(rng, 2, 32, truth, 3000):
            _, state = monitor.observe(seen, state)
        lengths[truth] = 1 / state["weights"]
    assert lengths[16] < 60
    assert lengths[1000] > 500


def test_it_follows_a_noise_scale_that_grows():
    """The early phase, in which gradients are ten times larger, is forgotten."""
    rng = np.random.default_rng(4)
    early = [
        one._replace(grad_square=100 * one.grad_square, parts_square=100 * one.parts_square)
        for one in updates(rng, 2, 32, 20, 200)
    ]
    late = list(updates(rng, 2, 32, 200, 1500))
    scale = watched(early + late)[:, 0]
    assert scale[199] == pytest.approx(20, rel=0.15)
    assert scale[-1] == pytest.approx(200, rel=0.15)


def test_equals_the_exact_value_of_a_model_where_it_can_be_computed():
    """Per-example gradients of a logistic regression, against halves of random batches."""
    torch.manual_seed(0)
    X = torch.randn(400, 10, dtype=torch.float64)
    y = (X[:, 0] + 0.5 * torch.randn(400, dtype=torch.float64) > 0).double()
    model = nn.Linear(10, 1).double()
    error = (torch.sigmoid(model(X)).squeeze(1) - y).detach()
    rows = torch.cat([error[:, None] * X, error[:, None]], dim=1)  # gradients row by row
    mean = rows.mean(dim=0)
    exact = float(((rows - mean) ** 2).sum() / (len(rows) - 1) / mean.dot(mean))

    def seen():
        for _ in range(3000):
            drawn = rows[torch.randperm(400)[:60]]
            first, second, whole = drawn[:20].mean(0), drawn[20:].mean(0), drawn.mean(0)
            weighted = (20 * first.dot(first) + 40 * second.dot(second)) / 60
            yield Observation(1, 60, 400, 1.0, float(whole.dot(whole)), 2, float(weighted))

    assert watched(seen())[-1, 0] == pytest.approx(exact, rel=0.05)


def test_without_parts_it_keeps_what_it_knows():
    monitor = GradientNoiseScale()
    seen = Observation(1, 64, None, 1.0, 2.0, 2, 3.0)
    found = watched([seen] * 20 + [seen._replace(parts=0)] * 3, monitor)
    assert found[-1].tolist() == found[19].tolist()
    assert math.isnan(watched([seen._replace(parts=0)])[0, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"error": 0.0}, "'error' parameter of GradientNoiseScale"),
        ({"error": 1.0}, "'error' parameter of GradientNoiseScale"),
        ({"shortest": 0.5}, "'shortest' parameter of GradientNoiseScale"),
        ({"shortest": 30, "longest": 20}, "'longest' .* must be a number of at least shortest=30"),
        ({"every": 0}, "'every' parameter of GradientNoiseScale"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        GradientNoiseScale(**settings)
