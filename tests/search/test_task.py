"""Tasks on Dask workers: results, reports, and Ctrl-C."""

import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from accelerando.search import _task as task
from accelerando.search._data import Chunk, ChunkGroup
from accelerando.search._task import BoxedChunk, TaskContext, TaskResult, run_task
from accelerando.search._train import Report, Slice, State, TrainingSpec

from .estimators import Counter, Raises


@pytest.fixture
def worker(monkeypatch):
    """The worker that a task believes to run on."""
    events = []
    fake = SimpleNamespace(
        address="tcp://here",
        state=SimpleNamespace(nthreads=1),
        log_event=lambda topic, message: events.append((topic, message)),
        events=events,
    )
    monkeypatch.setattr(task, "get_worker", lambda: fake)
    return fake


def run(slices, parents=(), estimator=None):
    rows = Chunk(np.zeros((2, 1)), np.zeros(2), {})
    spec = TrainingSpec(estimator or Counter(), lambda m, X, y: m.score(X), "score", 0, n_chunks=1)
    context = TaskContext(spec, [(7, 0)], "topic")
    groups = {7: ChunkGroup([rows])}
    return run_task(context, 5, slices, list(parents), groups, BoxedChunk(rows))


def part(model, start, stop, **params):
    return Slice(model, params, start, stop, stop, 100.0)


def test_a_task_sends_its_reports_and_returns_the_states(worker):
    result = run([part(0, 0, 2, slope=2.0), part(3, 0, 1, slope=3.0)])
    ((topic, message),) = worker.events
    assert (topic, message["task"], message["worker"]) == ("topic", 5, "tcp://here")
    reports = pickle.loads(message["reports"])
    assert [(report.model, report.calls) for report in reports] == [(0, 2), (3, 1)]
    assert [row.scores for row in reports[0].rows] == [{"score": 4.0}]
    assert all(report.nbytes > 0 for report in reports)
    assert {model: state.calls for model, state in result.states.items()} == {0: 2, 3: 1}
    assert task.reports_of(result)[1].model == 3


def test_a_task_does_not_change_its_inputs(worker):
    first = run([part(0, 0, 2)])
    for _ in range(2):
        second = run([part(0, 2, 3)], parents=[first])
        assert second.states[0].calls == 3
    assert first.states[0].calls == first.states[0].estimator.calls_ == 2


def test_a_model_that_fails_has_no_state(worker):
    result = run([part(0, 0, 3, slope=0.9), part(1, 0, 3, slope=0.1)], estimator=Raises())
    assert list(result.states) == [1]
    assert isinstance(result.reports[0].error, FloatingPointError)
    assert result.reports[0].nbytes == 0


def test_an_exception_that_cannot_be_pickled_is_sent_as_text():
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("no pickle")

    (report,) = pickle.loads(task.dump_reports([Report(0, 1, error=Odd("the cause"))]))
    assert isinstance(report.error, RuntimeError)
    assert str(report.error) == "Odd: the cause"


def test_an_exception_that_cannot_be_made_again_is_sent_as_text():
    class Odd(Exception):
        def __init__(self, code, reason):
            super().__init__(f"{code}: {reason}")

    (report,) = pickle.loads(task.dump_reports([Report(0, 1, error=Odd(7, "the cause"))]))
    assert isinstance(report.error, RuntimeError)
    assert str(report.error) == "Odd: 7: the cause"


def test_a_model_that_cannot_move_costs_only_itself(worker):
    """Dask would try for ever to move it."""

    class Locks(Counter):
        def partial_fit(self, X, y=None):
            super().partial_fit(X, y)
            self.lock_ = threading.Lock() if self.slope > 0.5 else None

    result = run([part(0, 0, 1, slope=0.9), part(1, 0, 1, slope=0.1)], estimator=Locks())
    assert list(result.states) == [1]
    assert str(result.reports[0].error).startswith("A trained Locks cannot be pickled (cannot")
    assert result.reports[0].stopped


def test_a_model_that_cannot_be_copied_costs_only_itself(worker):
    first = run([part(0, 0, 1), part(1, 0, 1)])
    first.states[0].estimator.lock_ = threading.Lock()
    second = run([part(0, 1, 2), part(1, 1, 2)], parents=[first])
    assert list(second.states) == [1]
    failed, trained = second.reports
    assert isinstance(failed.error, TypeError)
    assert failed.stopped
    assert (failed.calls, trained.calls, trained.error) == (1, 2, None)


def test_states_are_taken_out_of_a_result():
    result = TaskResult({0: State(Counter(), 1), 1: State(Counter(), 2)}, [])
    assert list(task.extract_model(result, 1).states) == [1]
    assert task.state_of(result, 1).calls == 2
    assert pickle.loads(task.pickle_of(result, 0)).calls == 1


def test_dask_sees_the_size_of_the_data():
    rows = np.zeros((1000, 10))
    assert 80_000 <= BoxedChunk(Chunk(rows, None, {})).__sizeof__() < 81_000
    state = State(Counter())
    state.estimator.rows_ = rows
    assert 80_000 <= TaskResult({0: state, 1: State(Counter())}, []).__sizeof__() < 82_000
