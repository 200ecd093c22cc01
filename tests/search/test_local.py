"""Workers in this process: one task at a time, states in place."""

import pickle

import pytest

from accelerando.search._data import Chunk, ChunkGroup, Data
from accelerando.search._local import LocalWorkers
from accelerando.search._train import Slice, State, TrainingSpec

from .estimators import Counter


class Interrupted(Counter):
    def partial_fit(self, X, y=None):
        if getattr(self, "calls_", 0) == 1:
            raise KeyboardInterrupt
        return super().partial_fit(X, y)


def workers(estimator=None, stop_requested=lambda: False):
    rows = [[[0.0]], [[1.0], [1.0]]]
    chunks = [Chunk(_Rows(chunk), None, {}) for chunk in rows]
    data = Data([ChunkGroup(chunks)], [(0, 0), (0, 1)], chunks[0])
    spec = TrainingSpec(estimator or Counter(), lambda m, X: m.score(X), "score", 0, n_chunks=2)
    return LocalWorkers(spec, data, stop_requested)


class _Rows(list):
    shape = (0, 1)


def part(model, start, stop):
    return Slice(model, {"slope": 1.0 + model}, start, stop, stop, 100.0)


def test_a_task_is_trained_in_the_order_of_its_slices():
    local = workers()
    assert (local.free_slots, local.busy) == (1, False)
    local.submit([part(1, 0, 2), part(0, 0, 3)], seconds=1.0)
    assert (local.free_slots, local.busy) == (0, True)
    reports = local.wait(timeout=0.0)
    assert [(report.model, report.calls) for report in reports] == [(1, 2), (0, 3)]
    assert (local.free_slots, local.busy) == (1, False)
    assert local.get(1).estimator.calls_ == 2
    assert sorted(local.get(0).estimator.rows_[:2]) == [1, 2]  # every chunk once per pass


def test_a_model_continues_from_its_state():
    local = workers()
    local.submit([part(0, 0, 1)], 1.0)
    local.wait(0.0)
    first = local.get(0).estimator
    local.submit([part(0, 1, 3)], 1.0)
    local.wait(0.0)
    assert local.get(0).estimator is first
    assert first.calls_ == 3


def test_a_requested_stop_leaves_the_rest_of_the_task():
    local = workers(stop_requested=lambda: True)
    local.submit([part(0, 0, 2), part(1, 0, 2)], 1.0)
    (report,) = local.wait(0.0)
    assert report.calls == 1  # the current call ends
    assert local.busy


def test_an_interrupt_leaves_no_half_trained_state():
    local = workers(Interrupted())
    local.submit([part(0, 0, 1)], 1.0)
    local.wait(0.0)
    assert local.location(0) == "here"
    local.submit([part(0, 1, 3)], 1.0)
    with pytest.raises(KeyboardInterrupt):
        local.wait(0.0)
    assert local.location(0) is None
    assert local.pickled(0)() is None


def test_states_are_stored_pickled_and_dropped():
    local = workers()
    local.put(3, State(Counter(), calls=4))
    assert local.location(3) == "here"
    assert pickle.loads(local.pickled(3)()).calls == 4
    local.drop([3, 8])
    assert local.get(3) is None
    local.put(3, State(Counter()))
    local.close()
    assert local.location(3) is None
