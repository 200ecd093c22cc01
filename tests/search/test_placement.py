"""Data on workers: sent once, sent again when it is lost."""

import threading
from types import SimpleNamespace

import pytest

from accelerando._cluster.driver import chunks
from accelerando.search._data import Chunk, ChunkGroup, Data, chunk_of_call
from accelerando.search._placement import MANY_CALLS, Placement
from accelerando.search._task import BoxedChunk, TaskContext

SPEC = SimpleNamespace(n_chunks=3, seed=0)


WHERE = {"workers": ["a", "b"], "allow_other_workers": True}


@pytest.fixture(autouse=True)
def _workers(monkeypatch):
    monkeypatch.setattr(chunks, "where_ranks_can_be", lambda client: WHERE)


class FakeClient:
    def __init__(self):
        self.scattered = []
        self.computed = 0

    def scatter(self, parts, workers, hash):
        assert hash is False  # equal data on two workers must have two keys
        # A thread of a Dask task would put the data on the worker of that task.
        assert threading.current_thread() is not threading.main_thread()
        self.scattered.append((workers[0], [type(part) for part in parts]))
        return [SimpleNamespace(status="finished", part=part) for part in parts]

    def compute(self, parts, **where):
        assert where == WHERE  # where our functions can be loaded
        self.computed += 1
        return [SimpleNamespace(status="finished", part=part) for part in parts]


def placement(lazy=False, n_groups=1):
    groups = [ChunkGroup([]) for _ in range(n_groups)]
    locations = [(i % n_groups, i // n_groups) for i in range(SPEC.n_chunks)]
    data = Data(groups, locations, Chunk(0, 1, {}), lazy)
    return Placement(FakeClient(), TaskContext(SPEC, locations, "topic"), data)


def test_each_worker_gets_the_data_once():
    placed = placement()
    first = placed.on("a")
    assert placed.on("a") is first
    placed.on("b")
    expected = [TaskContext, BoxedChunk, ChunkGroup]
    assert placed.client.scattered == [("a", expected), ("b", expected)]
    assert first.validation.part.chunk == Chunk(0, 1, {})
    assert len(first.groups) == 1


@pytest.mark.parametrize("lost", ["context", "validation", "groups"])
def test_lost_data_is_sent_again(lost):
    placed = placement()
    future = getattr(placed.on("a"), lost)
    (future[0] if lost == "groups" else future).status = "lost"
    placed.on("a")
    assert len(placed.client.scattered) == 2


def test_blocks_of_a_dask_collection_are_computed_once():
    placed = placement(lazy=True, n_groups=3)
    first, second = placed.on("a"), placed.on("b")
    assert placed.client.computed == 1
    assert first.groups == second.groups
    assert placed.client.scattered == [("a", [TaskContext]), ("b", [TaskContext])]
    first.groups[1].status = "cancelled"
    placed.on("a")
    assert placed.client.computed == 2


def test_a_task_gets_the_groups_of_its_calls():
    assert placement().groups_for(range(5)) == {0}
    placed = placement(n_groups=3)
    assert placed.groups_for(range(3)) == {0, 1, 2}
    assert placed.groups_for([4]) == {chunk_of_call(4, 3, 0)}


def test_a_cleared_placement_sends_everything_again():
    placed = placement(lazy=True)
    placed.on("a")
    placed.clear()
    placed.on("a")
    assert (len(placed.client.scattered), placed.client.computed) == (2, 2)


def test_a_task_asks_for_no_more_blocks_than_fit():
    data = Data([None] * 4, [(i, 0) for i in range(4)], None, lazy=True, group_bytes=[100] * 4)
    spec = SimpleNamespace(n_chunks=4, seed=0)
    placement = Placement(None, SimpleNamespace(spec=spec), data)
    assert [placement.most_calls(0, budget) for budget in (50, 100, 250)] == [1, 1, 2]
    assert placement.most_calls(0, 400) == MANY_CALLS
