"""The queue of jobs: how jobs are cut into slices, and slices combined into tasks."""

import math
from types import SimpleNamespace

import pytest

from accelerando.search._bracket_run import BracketRun, Model, Settings
from accelerando.search._halving import Job, train_all
from accelerando.search._jobs import JobQueue
from accelerando.search._plan import Bracket, Rung
from accelerando.search._train import Row


def queue(n_models=4, calls=9, **settings):
    bracket = BracketRun(Bracket(0, (Rung(n_models, calls),)), train_all(n_models, calls))
    models = {i: Model(i, bracket, {}) for i in range(n_models)}
    jobs = JobQueue(Settings(**settings), models)
    for i in range(n_models):
        jobs.issue(Job(i, calls))
    return jobs


def workers(n_slots=1, free=1, min_task_seconds=0.0, where=None):
    return SimpleNamespace(
        most_calls=lambda first: 10**9,
        n_slots=n_slots, free_slots=free, min_task_seconds=min_task_seconds,
        location=(where or {}).get,
    )  # fmt: skip


def tasks(jobs, places, calls=0, seconds_left=math.inf):
    out = []
    for slices, seconds in jobs.tasks(places, calls, planned=100, seconds_left=seconds_left):
        out.append(([part.model for part in slices], seconds))
        places.free_slots -= 1
    return out


def measured(jobs, fit=0.01, score=0.0):
    """Let every call take `fit` seconds, without training anything."""
    jobs.measure(Model(99, None, {}), [Row(1, {}, fit, score, 0.0)])
    return jobs


def test_free_slots_are_filled_in_the_order_of_priority():
    jobs = queue()
    jobs.models[2].score, jobs.models[1].score = 0.9, 0.1
    assert [models for models, _ in tasks(jobs, workers(n_slots=1, free=2))] == [[2], [1]]
    assert sorted(jobs.running) == [1, 2]
    assert sorted(jobs.ready) == [0, 3]
    assert jobs.pop(2) == Job(2, 9)


def test_the_first_slice_is_short_and_later_ones_follow_the_clock():
    jobs = queue(1, calls=1000, slice_seconds=1.0)
    tasks(jobs, workers())
    assert jobs.running[0][1].limit == 16
    jobs.issue(jobs.pop(0))
    tasks(measured(jobs, fit=0.1), workers())
    assert jobs.running[0][1][3:] == (1000, 20, 1.0)  # stop, limit (twice the calls), seconds


def test_a_slice_is_longer_than_its_score():
    jobs = measured(queue(1, slice_seconds=1.0), fit=0.1, score=5.0)
    ((_, seconds),) = tasks(jobs, workers())
    assert jobs.running[0][1].seconds == 20.0
    assert seconds == pytest.approx(9 * 0.1 + 5.0)


def test_max_seconds_shortens_slices():
    jobs = queue(1)
    tasks(jobs, workers(), seconds_left=0.25)
    assert jobs.running[0][1].seconds == 0.25


def test_max_calls_counts_running_slices():
    jobs = queue(4, calls=9, max_calls=12)
    assert tasks(jobs, workers(n_slots=4, free=4)) == [([0], math.inf), ([1], math.inf)]
    assert jobs.running[1][1].limit == 3
    assert jobs.calls_left(calls=0) == 0
    assert queue().calls_left(calls=10**9) == math.inf


def test_short_slices_are_combined_up_to_the_target():
    jobs = measured(queue(40, calls=1), fit=0.03)
    ((models, seconds), *_) = tasks(jobs, workers(min_task_seconds=0.1))
    assert len(models) == 4
    assert seconds == pytest.approx(0.12)


def test_the_last_tasks_of_a_rung_are_small():
    jobs = measured(queue(8, calls=1), fit=0.01)
    ((models, _), *_) = tasks(jobs, workers(n_slots=1, min_task_seconds=0.1))
    assert len(models) == 4  # half of what is left, instead of all


def test_no_task_has_more_than_its_share_of_the_models():
    jobs = measured(queue(8, calls=1), fit=1e-4)
    found = tasks(jobs, workers(4, 4, min_task_seconds=10))
    assert [len(models) for models, _ in found] == [2, 2, 1, 1]


def test_a_task_moves_no_model_to_another_worker():
    jobs = measured(queue(6, calls=1), fit=1e-4)
    where = {0: "a", 1: "b", 3: "b"}
    found = tasks(jobs, workers(2, 2, min_task_seconds=10, where=where))
    assert [models for models, _ in found] == [[0], [1, 2, 3]]
