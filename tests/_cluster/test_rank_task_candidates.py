"""The workers of a cluster that can run a rank."""

import time
from types import SimpleNamespace

import pytest

from accelerando._cluster import rank_task


def test_workers_are_asked_once_and_unfit_ones_are_named(monkeypatch):
    asked, lines = [], []

    def versions_of(client, workers, packages, seconds):
        asked.extend(workers)
        answers = {"a": rank_task.versions_here(packages), "b": {"torch": None}}
        return {worker: answers[worker] for worker in workers if worker in answers}

    monkeypatch.setattr(rank_task, "versions_of", versions_of)
    found = rank_task.Candidates(None, lambda event, text: lines.append((event, text)))
    workers = {"a": {}, "b": {"memory_limit": 4 * 10**8}, "hangs": {}}
    assert found.among(workers) == found.among(workers) == ("a",)
    assert asked == ["a", "b", "hangs"]
    assert [event for event, _ in lines] == ["unfit", "silent"]
    assert lines[0][1].startswith("Worker b has no accelerando, no torch")
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(rank_task, "time", clock)
    now, seconds = [time.monotonic()], []
    for _ in range(5):
        before = now[0]
        while asked.count("hangs") == len(seconds) + 1:
            now[0] += 1.0
            assert found.among({"hangs": {}}) == ()
        seconds.append(round(now[0] - before))
    assert seconds[1:] == pytest.approx([20, 40, 60, 60], abs=1), "it may answer later"
    assert [event for event, _ in lines] == ["unfit", "silent"]


def test_a_paused_worker_gets_no_rank_and_keeps_the_one_it_has(monkeypatch):
    lines = []
    here = rank_task.versions_here(rank_task.PACKAGES)
    monkeypatch.setattr(
        rank_task, "versions_of", lambda _, workers, *__: dict.fromkeys(workers, here)
    )
    found = rank_task.Candidates(None, lambda event, text: lines.append((event, text)))
    running = {"status": "running", "memory_limit": 4 * 10**8}
    paused = {**running, "status": "paused"}
    assert found.among({"a": paused, "b": paused, "c": running}, occupied={"b"}) == ("b", "c")
    assert found.among({"a": paused, "b": paused, "c": running}, occupied={"b"}) == ("b", "c")
    assert lines == [
        ("paused", "Worker a is paused: its memory limit of 400 MB is nearly used up.")
    ]
    assert found.paused == {"a"}
    assert found.among({"d": paused}) == ()
    assert found.paused == {"a"}, "not all workers were given"
    assert found.among({"a": running, "b": paused}, occupied={"b"}) == ("a", "b")
    assert found.paused == set()


def test_a_worker_that_is_doubted_is_asked_again(monkeypatch):
    asked = []

    def versions(client, workers, *_):
        asked.append(workers)
        return dict.fromkeys(workers, candidates.here)

    monkeypatch.setattr(rank_task, "versions_of", versions)
    candidates = rank_task.Candidates(None, None)
    assert candidates.among({"a": {}}) == candidates.among({"a": {}}) == ("a",)
    candidates.doubt("a")
    assert candidates.among({"a": {}}) == ("a",)
    assert asked == [["a"], ["a"]]
