"""Strategies with a central model."""

from __future__ import annotations

import pytest

from accelerando._decisions import Signals
from accelerando.sync import (
    AdaptiveAveraging,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    Outer,
    OuterOptimizer,
    PeriodicAveraging,
    Pull,
)


def test_rules():
    assert ModelAveraging(4).rule(ranks=4) == Pull(0.25, 0.0)
    assert ModelAveraging(4, momentum=0.9, correction=0.05).rule(ranks=4) == Pull(0.05, 0.9)
    assert ModelAveraging("auto").rule(ranks=2) == Pull(0.5, 0.0)
    assert ElasticAveraging(beta=0.9).rule(ranks=3) == Pull(0.9 / 3, 0.0)
    assert OuterOptimizer(lr=0.7, momentum=0.8).rule(ranks=8) == Outer(0.7, 0.8)


def test_periods_are_constant():
    signals = Signals.known(update=3)
    for strategy in (ModelAveraging(2, period=5), ElasticAveraging(5), OuterOptimizer(5)):
        assert strategy.next_period(signals, strategy.start()) == 5


def test_the_number_of_replicas():
    assert ModelAveraging(4).ranks_wanted() == 4
    assert ModelAveraging("auto").ranks_wanted() == "auto"
    assert ElasticAveraging().ranks_wanted() is None


def test_when_replicas_restart_from_the_central_model():
    strategy, update = ModelAveraging(4, period=2), Signals.known(update=0, epoch=0, lr=0.1)
    assert not strategy.begins_anew(update, strategy.start())
    state = strategy.observe(update.but(spread=0.5), strategy.start())
    # What counts is the rate at the last correction, not that of the update before.
    state = strategy.observe(update.but(lr=0.06), state)
    assert state == {"lr": 0.1}
    assert strategy.begins_anew(update.but(lr=0.05), state)
    assert not strategy.begins_anew(update.but(lr=0.06), state)
    others = (
        ElasticAveraging(),
        OuterOptimizer(),
        PeriodicAveraging(2),
        AdaptiveAveraging(),
        DecreasingAveraging(),
    )
    for other in others:
        assert not other.begins_anew(update.but(lr=0.001), {"lr": 1.0, **other.start()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelAveraging(1), "'replicas'.*must be an integer of at least 2 or 'auto'"),
        (lambda: ModelAveraging("all"), "'replicas' parameter"),
        (lambda: ModelAveraging(2, momentum=1.0), "'momentum' parameter of ModelAveraging"),
        (lambda: ModelAveraging(2, correction=0.0), "'correction' parameter"),
        (lambda: ModelAveraging(2, period=0), "'period' parameter of ModelAveraging"),
        (lambda: ElasticAveraging(beta=1.1), "'beta' parameter of ElasticAveraging"),
        (lambda: ElasticAveraging(period=0), "'period' parameter of ElasticAveraging"),
        (lambda: OuterOptimizer(lr=-1), "'lr' parameter of OuterOptimizer"),
        (lambda: OuterOptimizer(momentum=1), "'momentum' parameter of OuterOptimizer"),
        (lambda: OuterOptimizer(inner_steps=0), "'inner_steps' parameter of OuterOptimizer"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
