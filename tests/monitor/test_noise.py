"""The noise scale against gradients whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
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
def test_near_the_truth_never_negative_and_inside_its_interval(ranks, rows, truth, count):
    """The trials of the peers, whose estimators were off by up to 2.4 times, or negative."""
    rng = np.random.default_rng(0)
    inside, above = [], []
    for _ in range(10):
        scale, error, low = watched(updates(rng, ranks, rows, truth, count)).T
        assert abs(math.log(scale[-1] / truth)) < math.log(1.5)
        assert not (scale < 0).any()
        assert not (low < 0).any()
        inside.append(abs(math.log(scale[-1] / truth)) < 1.96 * error[-1])
        above.append(np.nanmean(low[7:] < truth))
    assert np.mean(inside) >= 0.8
    assert np.mean(above) >= 0.95


def test_far_above_the_batch_it_says_nothing_before_it_says_something_wrong():
    """At 10,000 with 64 rows the peers' estimates are negative in up to 42 % of the updates."""
    rng = np.random.default_rng(1)
    known = []
    for _ in range(10):
        scale, error, low = watched(updates(rng, 2, 32, 10_000, 1000)).T
        assert not (scale < 0).any()
        assert (low[7:] > 0).all()
        assert (low[7:] < 10_000).mean() > 0.9
        known += (scale / 10_000)[~np.isnan(scale)].tolist()
        assert np.nanmin(error, initial=1.0) > 0.05, "so few updates cannot tell"
    assert not known or 0.4 < np.median(known) < 2.5


def test_it_follows_a_noise_scale_that_grows():
    """The early phase, in which gradients are ten times larger, is forgotten."""
    rng = np.random.default_rng(4)
    early = [
        one._replace(grad_square=100 * one.grad_square, parts_square=100 * one.parts_square)
        for one in updates(rng, 2, 32, 20, 200)
    ]
    late = list(updates(rng, 2, 32, 200, 500))
    scale, error, _ = watched(early + late).T
    assert scale[199] == pytest.approx(20, rel=0.3)
    assert abs(math.log(scale[-1] / 200)) < max(math.log(1.5), 1.96 * error[-1])


def test_updates_that_were_not_measured_make_it_less_certain():
    rng = np.random.default_rng(5)
    seen = [one._replace(update=k) for k, one in enumerate(updates(rng, 8, 32, 200, 60))]
    apart = [one._replace(update=25 * one.update) for one in seen]
    assert watched(apart)[-1, 1] > 1.1 * watched(seen)[-1, 1]


# -- a model that moves ----------------------------------------------------------------------------


def trained(batch=64, count=400):
    """Yield what is seen of each update of a net on digits, with the exact noise scale before it.

    Rows are drawn with replacement, as the estimate assumes.
    """
    torch.manual_seed(3)
    digits = load_digits()
    X = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    norms = []

    def watch(_, given, output):
        def add(delta):
            norms.append(float(((given[0] ** 2).sum(1) + 1) @ (delta**2).sum(1)))

        output.register_hook(add)

    for layer in (net[0], net[2]):
        layer.register_forward_hook(watch)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def look(rows):
        norms.clear()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        return sum(float((p.grad**2).sum()) for p in net.parameters()), len(rows) * sum(norms)

    for update in range(count):
        exact = math.nan
        if update % 4 == 0:
            square, rows_square = look(torch.arange(len(X)))
            exact = (rows_square - square) / square
        rows = torch.randint(len(X), (batch,))
        square, rows_square = look(rows)
        yield Observation(update, batch, None, 1.0, square, batch, rows_square), exact
        optimizer.step()


def test_a_model_that_moves_is_followed_within_a_factor_of_one_and_a_half():
    """And inside its own interval, in at least 85 % of the updates; the scale grows eightfold."""
    seen, exact = zip(*trained(), strict=True)
    scale, error, low = watched(seen).T
    exact = np.array(exact)
    checked = ~np.isnan(exact) & ~np.isnan(scale)
    off = np.abs(np.log(scale / exact))[checked]
    assert np.nanmax(exact) > 5 * exact[0]
    assert np.argmax(~np.isnan(scale)) < 50
    assert checked.sum() > 80
    assert ((off < math.log(1.5)) & (off < 1.96 * error[checked])).mean() >= 0.85
    assert (low < exact)[~np.isnan(exact) & ~np.isnan(low)].mean() >= 0.95


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

    assert watched(seen())[-1, 0] == pytest.approx(exact, rel=0.2)


def test_without_parts_it_keeps_what_it_knows():
    monitor = GradientNoiseScale()
    seen = Observation(1, 64, None, 1.0, 2.0, 2, 3.0)
    found = watched([seen] * 20 + [seen._replace(parts=0)] * 3, monitor)
    assert found[-1].tolist() == found[19].tolist()
    assert math.isnan(watched([seen._replace(parts=0)])[0, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "'every' parameter of GradientNoiseScale"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        GradientNoiseScale(**settings)


def test_settings_of_the_former_average_are_deprecated():
    with pytest.warns(FutureWarning, match=r"GradientNoiseScale\(error=...\) is deprecated"):
        assert GradientNoiseScale(error=0.1) != GradientNoiseScale()
    assert repr(GradientNoiseScale()) == "GradientNoiseScale(every=None)"
