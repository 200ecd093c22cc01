"""Copies of models on second workers."""

from types import SimpleNamespace

import pytest

from accelerando.search._copies import StateCopies, StateLocation, should_copy, submit_beside
from accelerando.search._task import extract_model
from accelerando.search._train import Report


def test_a_copy_is_made_when_it_costs_little():
    assert should_copy(seconds=1.5, nbytes=10_000)
    assert not should_copy(seconds=0.5, nbytes=10_000)
    assert not should_copy(seconds=5, nbytes=20_000_000)  # 0.2 s at 100 MB/s
    assert should_copy(seconds=11, nbytes=20_000_000)
    assert not should_copy(seconds=1e6, nbytes=2**28)


class FakeClient:
    def __init__(self):
        self.submitted = []

    def submit(self, function, future, model, *, workers, pure, priority):
        assert function is extract_model
        assert pure is False
        self.submitted.append((future, model, workers[0]))
        return SimpleNamespace(status="finished", of=future)


@pytest.fixture
def copies():
    return StateCopies(FakeClient())


def update(copies, seconds, future="state", workers=("a", "b"), model=0, calls=1):
    report = Report(model, calls, seconds=seconds, nbytes=1000)
    copies.update(report, StateLocation(future, "a", calls), list(workers))


def test_training_adds_up_until_a_copy_is_worth_it(copies):
    update(copies, 0.6)
    assert copies.client.submitted == []
    update(copies, 0.6, future="later")
    assert copies.client.submitted == [("later", 0, "b")]
    update(copies, 0.6)  # since the copy
    assert len(copies.client.submitted) == 1


def test_the_only_worker_has_no_place_for_a_copy(copies):
    update(copies, 100, workers=["a"])
    assert copies.client.submitted == []
    assert copies.pop(0, ["a"]) is None


def test_the_latest_finished_copy_on_a_living_worker_is_used(copies):
    for calls in (1, 2, 3):
        update(copies, 2.0, calls=calls)
    assert [copy.calls for copy in copies.locations[0]] == [
        2,
        3,
    ]  # the one before, until it is there
    before, latest = copies.locations[0]
    assert copies.pop(0, ["a", "b"]) is latest
    copies.locations[0] = [before, latest]
    latest.future.status = "pending"
    assert copies.pop(0, ["a", "b"]).calls == 2
    assert copies.pop(0, ["a", "b"]) is None


def test_a_copy_on_a_dead_worker_is_of_no_use(copies):
    update(copies, 2.0)
    assert copies.pop(0, ["a"]) is None


def test_copies_are_spread_over_the_workers(copies):
    for model in range(4):
        update(copies, 2.0, model=model, workers=["a", "b", "c"])
    assert [worker for _, _, worker in copies.client.submitted] == ["b", "c", "b", "c"]


def test_a_dropped_model_is_forgotten(copies):
    update(copies, 2.0)
    update(copies, 0.9)
    copies.drop(0)
    update(copies, 0.9)
    assert len(copies.client.submitted) == 1
    assert copies.pop(0, ["b"]) is None


def test_a_task_about_a_state_runs_where_the_state_is():
    calls = []
    client = SimpleNamespace(submit=lambda *words, **options: calls.append((words, options)))
    submit_beside(client, "a", len, "state")
    options = {"workers": ["a"], "allow_other_workers": True, "pure": False}
    assert calls == [((len, "state"), options)]
