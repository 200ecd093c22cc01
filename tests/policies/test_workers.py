"""The number of ranks that pays: one ladder for three ways to choose it."""

from __future__ import annotations

import pytest

from accelerando.policies import Decision, Signals, WorkersForThroughput
from accelerando.policies._workers import SpeedTrials, Step, ladder


def always(fewer, more):
    return True


@pytest.mark.parametrize(
    ("measured", "ranks", "wanted", "step"),
    [
        ({}, 0, 8, Step(1)),  # nobody trains yet
        ({}, 3, 8, Step(3)),  # measure first
        ({}, 3, 2, Step(2)),
        ({1: 9.0}, 1, 8, Step(2)),
        ({1: 9.0, 2: 5.0}, 2, 8, Step(4)),
        ({1: 9.0, 2: 5.0}, 2, 3, Step(3)),
        ({1: 9.0, 4: 5.0}, 1, 8, Step(2)),  # back at fewer ranks: only those below count
    ],
)
def test_ranks_double_while_that_pays(measured, ranks, wanted, step):
    assert ladder(measured, ranks, wanted, always) == step


def test_the_last_step_is_undone_if_it_did_not_pay():
    asked = []

    def never(fewer, more):
        asked.append((fewer, more))
        return False

    assert ladder({1: 9.0, 2: 5.0, 4: 5.0}, 4, 8, never) == Step(2, 2)
    assert ladder({1: 9.0, 2: 5.0, 4: 5.0}, 4, 1, never) == Step(1, 2)
    assert asked == [(2, 4)] * 2
    assert ladder({2: 9.0}, 2, 8, never) == Step(4)


@pytest.mark.parametrize(("seconds", "pays"), [(0.95, True), (0.951, False), (1.2, False)])
def test_a_step_has_to_save_5_percent(seconds, pays):
    trials = SpeedTrials().observe(1, 64, 1.0).observe(2, 64, seconds)
    assert trials.advise(ranks=2, wanted=8) == (Step(4) if pays else Step(1, 1))


def test_the_limit_stays_until_the_batch_doubles():
    trials = SpeedTrials().observe(1, 64, 1.0).observe(2, 64, 2.0).settled(2, 8)
    assert trials.limit == 1
    assert trials.advise(ranks=5, wanted=8) == Step(1, 1)
    again = trials.observe(1, 127, 3.0)
    assert again.limit == 1
    assert again.seconds == {1: 3.0, 2: 2.0}
    assert again.batch_size == 64
    assert trials.observe(1, 128, 3.0) == SpeedTrials(batch_size=128, seconds={1: 3.0})
    assert trials.observe(1, 63, 3.0) == SpeedTrials(batch_size=63, seconds={1: 3.0})


def test_trials_are_values():
    trials = SpeedTrials().observe(1, 64, 1.0)
    trials.observe(2, 64, 0.5)
    trials.settled(1, 8)
    assert trials == SpeedTrials(batch_size=64, seconds={1: 1.0})


# -- the policy -----------------------------------------------------------------------------------


def throughput(policy, steps, size=64):
    state, told = policy.start(), []
    for update, ranks, speed in steps:
        signals = Signals.known(
            update=update, ranks=ranks, wanted_batch_size=size, examples_per_second=speed
        )
        decision, state = policy.decide(signals, state)
        told.append(decision and decision.workers)
    return told, state


def test_workers_double_while_they_are_efficient():
    steps = [(0, 1, 1e3), (10, 1, 1e3), (12, 2, 1.9e3), (22, 2, 1.9e3), (24, 4, 2e3), (34, 4, 2e3)]
    told, state = throughput(WorkersForThroughput(most=8, dwell=10), steps)
    assert told == [1, 2, None, 4, None, 2]
    assert state["settled"] == 1


@pytest.mark.parametrize(("speed", "asked"), [(1700.0, 4), (1699.0, 1)])
def test_the_efficiency_of_new_workers_counts(speed, asked):
    steps = [(0, 1, 1e3), (9, 1, 1e3), (10, 2, speed), (20, 2, speed)]
    told, _ = throughput(WorkersForThroughput(most=8, dwell=5, efficiency=0.7), steps)
    assert told == [1, 2, None, asked]


def test_nothing_is_decided_before_a_number_of_ranks_is_measured():
    nan = float("nan")
    steps = [(0, 1, nan), (4, 1, 9.0), (5, 1, nan), (6, 1, 9.0)]
    assert throughput(WorkersForThroughput(most=8, dwell=5), steps)[0] == [1, None, None, 2]


def test_workers_that_do_not_come_are_not_asked_for_again():
    steps = [(0, 1, 9.0), (5, 1, 9.0), (10, 1, 9.0), (15, 1, 9.0)]
    told, state = throughput(WorkersForThroughput(most=8, dwell=5), steps)
    assert told == [1, 2, None, None]
    assert state["settled"] == 0


def test_all_workers_are_enough():
    told, state = throughput(WorkersForThroughput(most=1, dwell=5), [(0, 1, 9.0), (5, 1, 9.0)])
    assert told == [1, None]
    assert state["settled"] == 1
    assert throughput(WorkersForThroughput(most=2, first=4), [(0, 1, 9.0)])[0] == [2]


def test_workers_begin_again_when_the_batch_has_doubled():
    policy = WorkersForThroughput(most=4, dwell=1)
    state = {"size": 64, "ranks": 2, "since": 0, "before": 1, "speed": 9.0, "settled": 1}
    signals = Signals.known(update=9, ranks=2, wanted_batch_size=64, examples_per_second=10.0)
    assert policy.decide(signals, state) == (None, state)
    decision, state = policy.decide(signals.but(wanted_batch_size=128), state)
    assert decision == Decision(workers=2)
    decision, state = policy.decide(signals.but(wanted_batch_size=128, update=10), state)
    assert decision == Decision(workers=4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WorkersForThroughput(efficiency=0), "'efficiency' parameter"),
        (lambda: WorkersForThroughput(most=0), "'most' parameter"),
        (lambda: WorkersForThroughput(first=1.5), "'first' parameter"),
        (lambda: WorkersForThroughput(dwell=0), "'dwell' parameter"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
