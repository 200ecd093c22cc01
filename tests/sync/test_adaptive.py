"""Periods that follow the spread of the replicas."""

from __future__ import annotations

import math
import random

import pytest

from accelerando._decisions import Signals
from accelerando.policies import replay
from accelerando.sync import AdaptiveAveraging, Average


def periods(strategy, spreads, lrs=None, **params):
    run = {"spread": spreads, "lr": lrs or [1.0] * len(spreads)}
    return replay(strategy, run, **params)["period"].tolist()[:-1]


def test_adaptive_averaging_is_algorithm_2():
    """The loop of the paper, line by line, against the strategy, with spreads that come and go."""
    draw = random.Random(0)
    total, warmup, p_init, share = 120, 10, 4, 0.3
    spreads = [draw.random() for _ in range(total)]
    rates = [0.1 if k < 60 else 0.01 for k in range(total)]

    count, period, c2, samples = 0, p_init, 0.0, []
    expected = []
    for k in range(total):
        p = 1 if k < warmup else period
        expected.append(p)
        count += 1
        if count == p:
            count = 0
            if k < warmup:
                continue
            if k < share * total:
                samples.append(spreads[k] / rates[k])
                c2 = sum(samples) / len(samples)
            elif spreads[k] < 0.7 * rates[k] * c2:
                period += 1
            elif spreads[k] > 1.3 * rates[k] * c2:
                period = max(1, period - 1)

    strategy = AdaptiveAveraging(p_init, sample=share)
    assert periods(strategy, spreads, rates, updates_per_epoch=warmup) == expected
    assert len(set(expected)) > 3


def test_it_samples_at_least_once():
    strategy = AdaptiveAveraging(2, sample=0.0, warmup_epochs=0)
    assert periods(strategy, [1.0, 1.0, 1.0, 1.0, 0.1, 0.1]) == [2, 2, 2, 2, 2, 2]
    assert periods(strategy, [1.0, 1.0, 0.1, 0.1, 0.1]) == [2, 2, 2, 2, 3]


def test_while_the_length_is_unknown_it_samples():
    strategy = AdaptiveAveraging(2, warmup_epochs=0)
    signals = Signals.known(update=900, epoch=3, lr=0.1, spread=0.5)
    state = strategy.observe(signals, strategy.start())
    again = strategy.observe(signals.but(spread=0.7), state)
    assert again == {"period": 2, "c2": pytest.approx(6.0), "samples": 2}
    known = strategy.observe(signals.but(spread=0.01, total_updates=1000.0), again)
    assert known["period"] == 3


@pytest.mark.parametrize(
    "change", [{"spread": math.nan}, {"epoch": 0}, {"lr": 0.0}, {"lr": math.nan}]
)
def test_nothing_is_learned_without_a_spread_a_rate_or_during_warm_up(change):
    strategy = AdaptiveAveraging(2)
    signals = Signals.known(update=9, epoch=3, lr=0.1, spread=0.5, total_updates=10.0)
    assert strategy.observe(signals.but(**change), strategy.start()) == strategy.start()
    assert strategy.observe(signals, strategy.start()) != strategy.start()


def test_it_averages():
    assert AdaptiveAveraging(optimizer_state="average").rule(3) == Average("average")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveAveraging(initial_period=1.5), "'initial_period' parameter"),
        (lambda: AdaptiveAveraging(sample=1.0), "'sample' parameter of AdaptiveAveraging"),
        (lambda: AdaptiveAveraging(low=1.4), "needs low < high"),
        (lambda: AdaptiveAveraging(high=-1), "'high' parameter"),
        (lambda: AdaptiveAveraging(warmup_epochs=-1), "'warmup_epochs' parameter"),
        (lambda: AdaptiveAveraging(optimizer_state="drop"), "'optimizer_state' parameter"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
