"""What an error says about workers that run no rank."""

import pytest

from accelerando._cluster import rank_task
from accelerando._cluster.driver.sizing import Limits, Sizing
from accelerando._cluster.driver.state import DriverState, RankInfo
from accelerando._cluster.remarks import remarks


@pytest.fixture
def candidates(monkeypatch):
    def versions_of(client, workers, packages, seconds):
        answers = {"a": rank_task.versions_here(packages), "b": {"torch": None}}
        return {worker: answers[worker] for worker in workers if worker in answers}

    monkeypatch.setattr(rank_task, "versions_of", versions_of)
    return rank_task.Candidates(None, lambda event, text: None)


def state_of(ranks=(), died=()):
    state = DriverState(Sizing(Limits(examples_per_worker=16), batch_size=32))
    state.ranks = {f"rank-{number}": info for number, info in enumerate(ranks)}
    state.stillborn = died
    return state


def test_nothing_is_said_of_workers_that_work(candidates):
    candidates.among({"a": {}}, occupied=())
    ranks = [RankInfo("a", status, 0.0) for status in ("starting", "ready", "training")]
    assert remarks(candidates, state_of(ranks)) == ""


def test_workers_that_cannot_be_used_are_named_with_the_remedy(candidates):
    candidates.among({"a": {}, "b": {"memory_limit": 4 * 10**8}, "hangs": {}}, occupied=())
    said = remarks(candidates, state_of())
    assert said.startswith(" Workers that cannot be used: b has no accelerando, no torch")
    assert " Workers that do not answer: hangs." in said
    assert "--interface" in said
    assert "memory" not in said


def test_workers_that_died_are_explained_by_their_limit_or_their_logs(candidates):
    candidates.among({"a": {}, "b": {"memory_limit": 4 * 10**8}}, occupied=())
    candidates.unfit.clear()
    said = remarks(candidates, state_of(died=("b", "a")))
    assert said.startswith(" Workers that left while a rank started have a memory limit of 400 MB")
    assert "95 %" in said
    assert remarks(candidates, state_of(died=("a",))).startswith(" The logs of the workers")


def test_paused_workers_are_named_with_their_limits(candidates):
    candidates.among({"a": {"status": "paused", "memory_limit": 4 * 10**8}}, occupied=())
    said = remarks(candidates, state_of())
    assert said.startswith(" Workers that Dask has paused")
    assert "limits: a (400 MB). Start workers with a larger --memory-limit" in said


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"nthreads": 1, "metrics": {"task_counts": {"executing": 1}}}, "threads: 1, 1 other task"),
        ({"nthreads": 2, "metrics": {}}, "threads: 2, 0 other tasks"),
        ({"nthreads": 1, "status": "paused"}, "threads: 1, paused"),
    ],
)
def test_ranks_that_do_not_start_are_named_with_what_their_workers_do(candidates, facts, found):
    candidates.among({"a": facts}, occupied={"a"})
    said = remarks(candidates, state_of([RankInfo("a", "silent", 0.0)]))
    assert said.startswith(f" Ranks that have not started, or hang: on a ({found}")
    assert remarks(candidates, state_of([RankInfo("gone", "silent", 0.0)])) != ""


def test_many_workers_are_not_all_listed(candidates):
    candidates.unfit = {str(number): "has no torch" for number in range(100)}
    assert remarks(candidates, state_of()).count("has no torch") == 5
