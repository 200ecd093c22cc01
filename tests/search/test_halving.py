import math
import random

import pytest

from accelerando.search._halving import (
    Outcome,
    async_halving,
    best_first,
    plateaued,
    successive_halving,
    train_all,
)
from accelerando.search._plan import halving_bracket, hyperband_brackets


def play(steps, score, seed=0, stopped=lambda job: False):
    """Answer the jobs of a generator in a random order; return all jobs, sorted."""
    shuffled = random.Random(seed)
    waiting = list(next(steps).jobs)
    dropped = set()
    seen = []
    try:
        while waiting:
            job = waiting.pop(shuffled.randrange(len(waiting)))
            seen.append(job)
            step = steps.send(Outcome(job.model, score(job), stopped(job)))
            assert dropped.isdisjoint(job.model for job in step.jobs)
            dropped.update(step.dropped)
            waiting += step.jobs
    except StopIteration:
        pass
    assert not waiting
    return sorted(seen)


def by_number(job):
    return job.model % 7 + job.model / 1000


@pytest.mark.parametrize("bracket", hyperband_brackets(81), ids=lambda b: str(b.index))
def test_halving_does_exactly_the_planned_calls(bracket):
    jobs = play(successive_halving(bracket), by_number)
    last = {job.model: job.calls for job in jobs}
    assert sum(last.values()) == bracket.partial_fit_calls
    for rung in bracket.rungs:
        assert sum(job.calls == rung.calls for job in jobs) == rung.n_models


@pytest.mark.parametrize(
    "make",
    [
        lambda: successive_halving(halving_bracket(27, 1)),
        lambda: async_halving(40, (1, 3, 9), 3, in_flight=4),
        lambda: train_all(5, 10),
    ],
    ids=["successive halving", "asha", "random"],
)
def test_the_order_of_arrival_changes_no_decision(make):
    first = play(make(), by_number, seed=0)
    assert all(play(make(), by_number, seed=seed) == first for seed in range(1, 20))


def test_the_best_survive():
    jobs = play(successive_halving(halving_bracket(9, 1)), lambda job: job.model)
    assert [job.model for job in jobs if job.calls == 3] == [6, 7, 8]
    assert [job.model for job in jobs if job.calls == 9] == [8]


def test_a_model_that_was_dropped_does_not_come_back():
    """Also if the scores of the survivors have fallen below its last one."""

    def falling(job):
        return job.model - 100 * (job.calls > 1)

    jobs = play(successive_halving(halving_bracket(9, 1)), falling)
    assert [job.model for job in jobs if job.calls == 9] == [8]


def test_nan_never_survives_a_number():
    scores = {0: math.nan, 1: -5.0, 2: math.nan, 3: -math.inf}
    assert best_first(scores) == [1, 3, 0, 2]
    jobs = play(
        successive_halving(halving_bracket(9, 1)),
        lambda job: math.nan if job.model != 4 else -100.0,
    )
    assert [job.model for job in jobs if job.calls == 9] == [4]


def test_a_stopped_model_keeps_its_rank_and_gets_no_work():
    jobs = play(
        successive_halving(halving_bracket(9, 1)),
        lambda job: job.model,
        stopped=lambda job: job.model == 8,
    )
    assert max(job.calls for job in jobs if job.model == 8) == 1
    # 8 is still the best of the three survivors, so no one else is promoted in its stead
    assert [job.model for job in jobs if job.calls == 9] == []


def test_asha_promotes_one_in_three_at_every_rung():
    jobs = play(async_halving(81, (1, 3, 9, 27), 3, in_flight=1), lambda job: -job.model)
    counts = [sum(job.calls == calls for job in jobs) for calls in (1, 3, 9, 27)]
    assert counts == [81, 27, 9, 3]


def test_asha_promotes_before_it_starts_new_models():
    steps = async_halving(9, (1, 3), 3, in_flight=1)
    assert [job.model for job in next(steps).jobs] == [0]
    assert steps.send(Outcome(0, 0.1)).jobs[0].model == 1
    assert steps.send(Outcome(1, 0.9)).jobs[0].model == 2
    assert steps.send(Outcome(2, 0.2)).jobs[0] == (1, 3)


def test_asha_promotes_no_model_that_has_stopped():
    jobs = play(
        async_halving(9, (1, 3, 9), 3, in_flight=2),
        lambda job: job.model,
        stopped=lambda job: job.model >= 7,
    )
    assert {job.model for job in jobs if job.calls > 1} == {2, 3, 4, 5, 6}
    assert max(job.calls for job in jobs if job.model >= 7) == 1


def test_asha_promotes_from_the_highest_rung_first():
    slots = 6
    steps = async_halving(6, (1, 2, 4), 2, in_flight=lambda: slots)
    assert len(next(steps).jobs) == 6
    slots = 0
    assert not any(steps.send(Outcome(model, model)).jobs for model in range(5))
    slots = 2
    assert steps.send(Outcome(5, 5)).jobs == [(5, 2), (4, 2)]  # 3 could be promoted, too
    slots = 0
    assert steps.send(Outcome(5, 5)).jobs == []
    slots = 1
    assert steps.send(Outcome(4, 4)).jobs == [(5, 4)]


def test_asha_counts_only_the_new_calls_of_a_promoted_model_on_its_clock():
    steps = async_halving(9, (1, 3), 3, in_flight=2)
    next(steps)
    for model in (0, 1, 2, 3, 4):  # 2 is promoted at time 2, and ends at time 4, as 5 does
        step = steps.send(Outcome(model, 9.0 if model == 2 else -model))
    assert step.jobs == [(5, 1)]
    assert steps.send(Outcome(5, -5.0)).jobs == []  # 2 is first
    assert steps.send(Outcome(2, 9.0)).jobs == [(6, 1), (0, 3)]


def test_asha_drops_who_can_never_be_promoted():
    steps = async_halving(6, (1, 2), 3, in_flight=1)
    (running,) = next(steps).jobs
    kept = {running.model}
    score = {0: 3.0, 1: 1.0, 2: 2.0, 3: 0.0, 4: 0.0, 5: 0.0}
    dropped = []
    while running.model < 5:
        step = steps.send(Outcome(running.model, score[running.model]))
        (running,) = step.jobs
        kept = (kept | {running.model}) - set(step.dropped)
        dropped += step.dropped
        assert len(kept) <= 6 // 3 + 1
    # 0 has been promoted to the last rung and ended there; 2 may still be promoted
    assert sorted(dropped) == [0, 1, 3, 4]


def test_plateau_needs_a_past_of_patience_calls():
    assert not plateaued([(1, 0.5), (2, 0.5)], patience=3, tol=0.0)
    assert plateaued([(1, 0.5), (3, 0.5)], patience=3, tol=0.0)
    assert plateaued([(1, math.nan), (3, math.nan)], patience=3, tol=0.0)
    assert not plateaued([(1, 0.5), (3, 0.5)], patience=3, tol=math.nan)
    assert not plateaued([(1, 0.5), (3, 0.5)], patience=3, tol=None)
    assert plateaued([(1, 0.5), (4, 0.5)], patience=3, tol=0.0)
    assert plateaued([(1, 0.9), (2, 0.1), (4, 0.3)], patience=3, tol=0.0)
    assert plateaued([(1, 0.9), (2, 0.1), (4, 0.3)], patience=2, tol=0.0)  # .9 is the one to beat
    assert not plateaued([(1, math.nan), (4, 0.5)], patience=3, tol=0.0)
