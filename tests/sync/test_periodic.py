"""Constant and decreasing periods."""

from __future__ import annotations

import math

import pytest

from accelerando._decisions import Signals
from accelerando.policies import replay
from accelerando.sync import Average, DecreasingAveraging, PeriodicAveraging


def periods(strategy, losses):
    return replay(strategy, {"loss": losses, "spread": [0.1] * len(losses)})["period"].tolist()


def test_a_constant_period():
    assert periods(PeriodicAveraging(3), [1.0] * 4) == [3] * 5
    assert PeriodicAveraging(3, "reset").rule(2) == Average("reset")


def test_a_decreasing_period_follows_the_loss():
    strategy = DecreasingAveraging(16, every_epochs=1)
    assert periods(strategy, [1.0, 0.25, 0.01]) == [16, 8, 4, 2]
    assert periods(strategy, [1.0, 0.01]) == [16, 8, 2]  # √0.01 · 16 = 1.6
    assert periods(strategy, [1.0] * 6) == [16, 8, 4, 2, 1, 1, 1]


def test_it_changes_after_a_number_of_epochs():
    frame = replay(
        DecreasingAveraging(16, every_epochs=2),
        {"loss": [4.0, 2.0, 1.0, 0.0625, 0.0625, 0.0625], "spread": [0.1] * 6},
        updates_per_epoch=1,
    )
    # (4 + 2) / 2 / 4 = 3 / 4 of the first loss, then 0.53125 / 4
    first, second = math.ceil(math.sqrt(0.75) * 16), math.ceil(math.sqrt(0.53125 / 4) * 16)
    assert frame["period"].tolist() == [16, 16, first, first, second, second, 2]


def test_it_needs_the_loss_of_every_update():
    strategy = DecreasingAveraging()
    assert strategy.needs == ("loss",)
    assert PeriodicAveraging(2).needs == ()
    state = strategy.start()
    assert strategy.observe(Signals.known(update=0, epoch=0), state) == state
    after = strategy.observe(Signals.known(update=0, epoch=0, loss=2.0), state)
    assert after == {"period": 16, "stretch": 0, "losses": 2.0, "count": 1, "first": 2.0}


def test_a_loss_of_zero_halves_the_period():
    assert periods(DecreasingAveraging(8, every_epochs=1), [0.0, 0.0]) == [8, 4, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PeriodicAveraging(0), "'period' parameter of PeriodicAveraging must be an integ"),
        (lambda: PeriodicAveraging({0: 2, 5: 0}), "or a dictionary from epochs, 0 among them"),
        (lambda: PeriodicAveraging({1: 2}), "or a dictionary from epochs, 0 among them"),
        (lambda: PeriodicAveraging({}), "'period' parameter of PeriodicAveraging"),
        (lambda: PeriodicAveraging(2, warmup_epochs=-1), "'warmup_epochs' parameter"),
        (lambda: PeriodicAveraging(2, "forget"), "must be 'keep', 'average' or 'reset'"),
        (lambda: DecreasingAveraging(every_epochs=0), "'every_epochs' parameter"),
        (lambda: DecreasingAveraging(initial_period=1.5), "'initial_period' parameter"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_periods_may_follow_a_schedule_by_epoch():
    strategy = PeriodicAveraging({0: 1, 2: 4, 3: 2})
    frame = replay(strategy, {"spread": [0.1] * 8}, updates_per_epoch=2)
    assert frame["period"].tolist() == [1, 1, 1, 1, 4, 4, 2, 2, 2]


def test_ranks_average_in_every_update_of_the_warm_up():
    frame = replay(
        PeriodicAveraging(4, warmup_epochs=2), {"spread": [0.1] * 6}, updates_per_epoch=2
    )
    assert frame["period"].tolist() == [1, 1, 1, 1, 4, 4, 4]


def test_half_an_epoch_of_warm_up():
    def period(epoch, examples):
        signals = Signals.known(epoch=epoch, examples=examples, n_examples=100.0)
        return PeriodicAveraging(4, warmup_epochs=1.5).next_period(signals, {})

    assert [period(0, 0), period(0, 99), period(1, 149), period(1, 150), period(2, 200)] == [
        1, 1, 1, 4, 4,
    ]  # fmt: skip
