"""What policies and strategies would have decided."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from accelerando.exceptions import UnknownSignalError
from accelerando.policies import (
    AdaDamp,
    Constant,
    Decision,
    GeoDamp,
    LinearScaling,
    NoiseScale,
    Policy,
    RadaDamp,
    RadaDampLR,
    replay,
)
from accelerando.sync import AdaptiveAveraging, PeriodicAveraging

FRAME = pd.DataFrame(
    {
        "update": [1, 2, 3, 4],
        "epoch": [1, 1, 2, 2],
        "examples": [8, 16, 24, 32],
        "batch_size": 8,
        "lr": [0.1, 0.1, 0.05, 0.05],
        "loss": [1.0, 0.9, 0.8, 0.7],
        "noise": [1.0, 2.0, 3.0, 4.0],
        "seconds": [1.0, 2.0, 3.0, 4.0],
        "comment": "text",
    }
)
COLUMNS = ["update", "batch_size", "lr", "momentum", "workers", "period", "averaged", "decided"]


def looking():
    seen = []
    return seen, lambda signals: seen.append(dict(signals))


# -- recorded sizes -------------------------------------------------------------------------------


def test_policies_see_the_signals_as_they_were_before_each_update():
    seen, look = looking()
    replay(look, FRAME, n_examples=16)
    assert [one["update"] for one in seen] == [0, 1, 2, 3, 4]
    assert [one["epoch"] for one in seen] == [0, 0, 1, 1, 1]
    assert [one["examples"] for one in seen[1:]] == [8, 16, 24, 32]
    assert [one["noise"] for one in seen[1:]] == [1, 2, 3, 4]
    assert math.isnan(seen[0]["noise"])
    assert [one["loss"] for one in seen[1:]] == [1.0, 0.9, 0.8, 0.7]
    assert math.isnan(seen[0]["loss"])
    assert [one["lr"] for one in seen] == [0.1, 0.1, 0.05, 0.05, 0.05]
    assert {one["n_examples"] for one in seen} == {16}
    assert {one["batch_size"] for one in seen} == {8}
    assert not {"seconds", "comment"} & set(seen[0])


def test_decisions_hold():
    def decide(signals):
        if signals.update == 1:
            return Decision(lr=signals.lr * 2, workers=3, betas=(0.5, 0.9), period=2)
        return Decision(batch_size=2 * signals.batch_size) if signals.update >= 3 else None

    frame = replay(decide, FRAME)
    assert list(frame.columns) == COLUMNS
    assert frame["update"].tolist() == [0, 1, 2, 3, 4]
    assert frame["lr"].tolist() == pytest.approx([0.1, 0.2, 0.1, 0.1, 0.1])
    assert frame["batch_size"].tolist() == [8, 8, 8, 16, 32]
    assert frame["workers"].tolist()[1:] == [3] * 4
    assert frame["momentum"].tolist()[1:] == [0.5] * 4
    assert frame["period"].tolist()[1:] == [2] * 4
    assert frame["decided"].tolist() == [False, True, False, True, True]
    assert not frame["averaged"].any()


def test_recorded_changes_are_no_decisions():
    sizes = [8, 8, 8, 3, 16, 16, 16, 5]  # the last batch of an epoch is short
    run = {"epoch": [1] * 4 + [2] * 4, "batch_size": sizes, "loss": [1.0] * 8}
    frame = replay(lambda signals: None, run)
    assert frame["batch_size"].tolist() == [8] * 4 + [16] * 5
    assert not frame["decided"].any()


def test_decisions_of_a_recorded_policy_are_made_again():
    """A column ``workers`` says that policies may have decided the recorded sizes."""
    sizes = [8, 8, 16, 3, 16, 16, 16, 5]
    run = {"epoch": [1] * 4 + [2] * 4, "batch_size": sizes, "loss": [1.0, 0.5] + [1.0] * 6}
    seen = []

    def double(signals):
        seen.append(signals.batch_size)
        return Decision(batch_size=2 * signals.batch_size) if signals.loss < 0.7 else None

    frame = replay(double, {**run, "workers": [math.nan] * 8})
    assert seen[:4] == [8, 8, 8, 16]
    assert frame["decided"].tolist() == [False, False, True] + [False] * 6
    assert frame["batch_size"].tolist() == [8, 8] + [16] * 7


def test_batch_size_policies_replace_recorded_sizes():
    for policy in (GeoDamp(4, delay=1, factor=3), RadaDamp(4, memory=0.5), AdaDamp(4, dwell=1)):
        fresh = replay(policy, FRAME.drop(columns="batch_size"))
        assert replay(policy, FRAME)["batch_size"].tolist() == fresh["batch_size"].tolist()
    for policy in (12, Constant(12), Constant, lambda signals: 12):
        sizes = replay(policy, FRAME)["batch_size"]
        assert set(sizes) == ({128} if policy is Constant else {12})


def test_rates_fall_where_batches_may_not_grow():
    free = replay(RadaDamp(8, memory=0.2), FRAME, max_batch_size=8)
    twin = replay(RadaDampLR(8, memory=0.2), FRAME)
    assert free["batch_size"].tolist() == twin["batch_size"].tolist() == [8] * 5
    assert free["lr"].tolist() == pytest.approx(twin["lr"].tolist())
    assert free["lr"].iloc[-1] < 0.05


def test_several_policies():
    recorded = replay([lambda s: Decision(batch_size=24), LinearScaling(8)], FRAME)
    fresh = replay([24, LinearScaling(8)], {"loss": [1.0], "lr": [0.1]})
    assert recorded["lr"].tolist() == pytest.approx([0.3, 0.3, 0.15, 0.15, 0.15])
    assert fresh["lr"].tolist() == pytest.approx([0.3, 0.3])


# -- without recorded sizes -----------------------------------------------------------------------


def test_without_recorded_sizes_the_policy_is_asked_as_batch_size():
    seen = []

    def grow(signals):
        seen.append((signals.batch_size, signals.rows, signals.examples, signals.grad_norm))
        return 16 if signals.loss < 0.7 else 8

    frame = replay(grow, {"loss": [1.0, 0.5, 0.9]})
    assert frame["batch_size"].tolist() == [8, 8, 16, 8]
    assert frame["lr"].tolist() == [1.0] * 4
    assert frame["decided"].tolist() == [True, False, True, True]
    assert seen[1:] == [(8, 8, 8, 0), (8, 8, 16, 0), (16, 16, 32, 0)]
    assert seen[0][2] == 0
    assert all(map(math.isnan, (seen[0][0], seen[0][1], seen[0][3])))


def test_none_keeps_the_size_but_not_before_the_first_update():
    frame = replay(lambda s: 8 if s.update == 0 else None, {"loss": [1.0, 1.0]})
    assert frame["batch_size"].tolist() == [8, 8, 8]
    with pytest.raises(ValueError, match="returned no batch size before the first update"):
        replay(lambda signals: None, {"loss": [1.0]})


def test_noise_scale_begins_with_its_initial_size():
    noise = {"noise_scale": [100.0] * 3, "noise_scale_error": 0.1, "noise_scale_low": 50.0}
    frame = replay(NoiseScale(initial=10, dwell=1), {"loss": [1.0] * 3, **noise})
    assert frame["batch_size"].tolist() == [10, 20, 40, 80]


def test_epochs_are_counted_or_recorded():
    policy = GeoDamp(8, delay=1, factor=2)
    losses = {"loss": [1.0] * 4}
    assert replay(policy, losses)["batch_size"].tolist() == [8, 16, 32, 64, 128]
    twice = replay(policy, losses, updates_per_epoch=2)
    assert twice["batch_size"].tolist() == [8, 8, 16, 16, 32]
    recorded = {**losses, "epoch": [1, 1, 1, 2]}
    assert replay(policy, recorded)["batch_size"].tolist() == [8, 8, 8, 16, 16]
    over = replay(policy, recorded, updates_per_epoch=2)
    assert over["batch_size"].tolist() == [8, 8, 16, 16, 32]


def test_replay_can_start_in_the_middle_of_a_run():
    seen, look = looking()
    replay(look, FRAME.iloc[2:])
    assert [one["epoch"] for one in seen] == [1, 1, 1]
    assert [one["update"] for one in seen] == [0, 3, 4]


# -- strategies -----------------------------------------------------------------------------------


def test_strategies_average_after_their_period():
    frame = replay(PeriodicAveraging(2), {"spread": [0.1] * 5, "batch_size": [8] * 5})
    assert list(frame.columns) == COLUMNS
    assert frame["period"].tolist() == [2.0] * 6
    assert frame["averaged"].tolist() == [False, False, True, False, True, False]
    assert frame["batch_size"].tolist() == [8] * 6
    assert not frame["decided"].any()


def test_a_strategy_sees_rates_spreads_and_the_number_of_updates():
    run = {"lr": [0.1] * 6 + [0.01] * 5, "spread": [1.0] * 6 + [0.01] * 5}
    frame = replay(AdaptiveAveraging(2, sample=0.5, warmup_epochs=0), run)
    assert frame["period"].tolist() == [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4]
    assert frame["decided"].to_numpy().nonzero()[0].tolist() == [8, 11]
    assert frame["lr"].tolist() == [*run["lr"], 0.01]
    assert frame["batch_size"].isna().all()


def test_a_spread_that_was_not_recorded_is_not_observed():
    seen = []

    class Asking(PeriodicAveraging):
        def observe(self, signals, state):
            seen.append((signals.update, signals.loss, signals.spread))
            return state

    replay(Asking(2), {"spread": [0.5, 0.6, math.nan, math.nan], "loss": [4.0, 3.0, 2.0, 1.0]})
    assert seen[1] == (1, 3.0, 0.6)
    assert all(math.isnan(seen[k][2]) for k in (0, 2, 3))


# -- errors ---------------------------------------------------------------------------------------


def test_what_is_missing_is_named():
    with pytest.raises(UnknownSignalError, match=r"no signal 'noise_scale'.*Known signals: batch"):
        replay(NoiseScale(dwell=1), FRAME)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: replay(GeoDamp(), FRAME.iloc[:0]), ValueError, "has no row"),
        (lambda: replay(GeoDamp(), [1.0, 2.0]), TypeError, "mapping of columns"),
        (lambda: replay([], FRAME), ValueError, "at least one policy"),
        (lambda: replay("all", FRAME), TypeError, "'batch_size' parameter must be"),
        (lambda: replay(PeriodicAveraging, FRAME), TypeError, "an instance of PeriodicAveraging"),
        (lambda: replay(8, FRAME, updates_per_epoch=0), ValueError, "'updates_per_epoch' param"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_errors_name_the_policy():
    class Bad(Policy):
        def decide(self, signals, state):
            return Decision(lr=-1), state

        def __repr__(self):
            return "Bad()"

    with pytest.raises(ValueError, match=r"Bad\(\) decided -1"):
        replay(Bad(), FRAME)
