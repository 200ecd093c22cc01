"""Batch sizes that follow the noise in the gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerando.monitor import GradientNoiseScale, GradientVariance
from accelerando.policies import Decision, NoiseScale, NormTest, Signals
from tests.nets import classifier


def noise(update=100, size=64, scale=1000.0, error=0.1, low=800.0):
    return Signals(
        {
            "update": update,
            "wanted_batch_size": size,
            "noise_scale": scale,
            "noise_scale_error": error,
            "noise_scale_low": low,
        }
    )


@pytest.mark.parametrize(
    ("settings", "signals", "size"),
    [
        ({}, {}, 128),  # bounded growth
        ({"growth": 100.0}, {}, 1000),
        ({"growth": 100.0, "share": 0.5}, {}, 500),
        ({"growth": 100.0, "largest": 300}, {}, 300),
        ({}, {"update": 19}, None),  # dwell
        ({}, {"size": 980}, None),  # less than 5 %
        ({"smallest": 32}, {"size": 2000, "scale": 100.0}, 1000),  # shrinks, bounded
        ({"smallest": 90, "growth": 100.0}, {"size": 2000, "scale": 10.0}, 90),
        ({}, {"size": 2000, "scale": 100.0}, None),
        ({}, {"error": 0.9, "low": 100.0}, 100),  # at least that
        ({}, {"error": 0.9, "low": 50.0}, None),
        ({}, {"scale": float("nan"), "error": float("nan"), "low": 3000.0}, 128),
    ],
)
def test_the_batch_follows_the_noise_scale_within_bounds(settings, signals, size):
    decision = NoiseScale(**settings)(noise(**signals))
    assert (decision and decision.batch_size) == size


def test_noise_scale_dwells():
    policy = NoiseScale(dwell=30)
    _, state = policy.decide(noise(update=100), policy.start())
    assert policy.decide(noise(update=129, size=128), state)[0] is None
    assert policy.decide(noise(update=130, size=128), state)[0] == Decision(batch_size=256)


def kungfu(digits):
    """Return the sizes that KungFu's estimate asks for: halves, averages with weight 0.6."""
    torch.manual_seed(0)
    X, y = (torch.as_tensor(part) for part in digits)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def square(rows):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        return sum(float((p.grad**2).sum()) for p in net.parameters())

    size, sizes, means = 8, [], None
    for update in range(240):
        rows = torch.randint(len(X), (size,))
        small = sum(square(half) for half in rows.split(size // 2)) / 2
        large = square(rows)
        found = (2 * large - small, size * (small - large))
        means = (
            found
            if means is None
            else [0.4 * m + 0.6 * f for m, f in zip(means, found, strict=True)]
        )
        if update % 20 == 19 and means[0] > 0.0:
            wanted = min(2 * size, max(8, means[1] / means[0]))
            size = 2 * round(wanted / 2)
        sizes.append(size)
        optimizer.step()
    return sizes


def test_with_its_defaults_the_batch_grows_as_kungfus_does(digits):
    frame = (
        classifier(batch_size=NoiseScale(initial=8), max_epochs=8, train_split=None)
        .fit(*digits)
        .updates_frame()
    )
    theirs = kungfu(digits)
    ours = frame["batch_size"].tolist()
    assert max(theirs) > 8, "or there is nothing to compare with"
    assert max(ours) >= max(theirs)
    assert next(k for k, size in enumerate(ours) if size >= 16) <= 100


def test_the_norm_test_never_shrinks_the_batch():
    enough = Signals(
        {"update": 90, "wanted_batch_size": 64, "gradient_variance": 10.0, "gradient_square": 1.0}
    )
    assert NormTest()(enough) is None
    assert NormTest(theta=0.1)(enough).batch_size == 128
    assert NormTest(theta=0.1, largest=100)(enough).batch_size == 100
    assert NormTest(theta=0.1, growth=100.0)(enough).batch_size == 1000


def test_they_bring_their_monitors():
    assert NoiseScale().monitors() == (GradientNoiseScale(),)
    assert NormTest().monitors() == (GradientVariance(),)
    assert NoiseScale.occasional
    assert NormTest.occasional


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NoiseScale(growth=1.0), "'growth' parameter of NoiseScale"),
        (lambda: NoiseScale(initial=1.5), "'initial' parameter of NoiseScale"),
        (lambda: NoiseScale(largest=0), "'largest' parameter of NoiseScale"),
        (lambda: NormTest(theta=0), "'theta' parameter of NormTest"),
        (lambda: NormTest(dwell="1"), "'dwell' parameter of NormTest"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
