"""The thread that writes a checkpoint: the search does not wait for it, and nothing is lost."""

import threading
import time
from types import SimpleNamespace

import cloudpickle
import pytest
from scipy.stats import uniform

from accelerando.search import HyperbandSearchCV
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._local import LocalWorkers
from accelerando.search._train import State

from .estimators import Counter


def test_the_search_does_not_wait_for_the_disk(tmp_path):
    """The state of a model that was dropped meanwhile is not written at all."""
    written = threading.Event()
    fetched = []

    def pickled(model):
        def fetch():
            written.wait()
            fetched.append(model)
            return b"x"

        return fetch

    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    workers = SimpleNamespace(pickled=pickled)
    for model in range(5):
        checkpoint.save_end(model, 1, False, [{"score": 1.0}], workers)  # returns at once
    checkpoint.drop(4)
    written.set()
    checkpoint.flush()
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "0.pickle", "1.pickle", "2.pickle", "3.pickle",
    ]  # fmt: skip
    assert fetched == [0, 1, 2, 3]
    checkpoint.close()
    again = Checkpoint(tmp_path, {}, seed=0)
    assert len(again.ends) == 5


def test_a_state_is_read_as_it_was_saved_last(tmp_path):
    """Also if the thread has not written it yet."""
    asked = threading.Event()

    def pickled(model):
        def fetch():
            asked.wait()
            return cloudpickle.dumps(State(None, calls=3))

        return fetch

    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    checkpoint.save_end(0, 3, False, [{"score": 1.0}], SimpleNamespace(pickled=pickled))
    timer = threading.Timer(0.01, asked.set)
    timer.start()
    assert checkpoint.state(0).calls == 3
    checkpoint.close()


@pytest.fixture
def fetched_late(monkeypatch):
    """Workers whose states are fetched when they are written, as on a cluster."""

    def pickled(self, model):
        return lambda: cloudpickle.dumps(self.states[model]) if model in self.states else None

    monkeypatch.setattr(LocalWorkers, "pickled", pickled)


def saved_by_a_search(directory, data):
    """Return the names of the states of a search that ended early."""
    search = HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, max_iter=9, max_calls=40, client=None,
        checkpoint=directory, random_state=0,
    )  # fmt: skip
    search.fit(*data)
    return {path.name for path in (directory / "models").iterdir()}


def test_states_are_written_while_the_workers_have_them(data, tmp_path, request):
    expected = saved_by_a_search(tmp_path / "one", data)
    request.getfixturevalue("fetched_late")
    assert saved_by_a_search(tmp_path / "other", data) == expected
    assert len(expected) > 1


def test_nothing_is_written_after_an_error(tmp_path, monkeypatch):
    """Or the log would have a gap."""
    release = threading.Event()

    def pickled(model):
        return lambda: release.wait() and b"x"

    def full(path):
        monkeypatch.undo()
        raise OSError("no space left on device")

    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    monkeypatch.setattr("accelerando.search._checkpoint.atomic_write", full)
    workers = SimpleNamespace(pickled=pickled)
    checkpoint.save_end(0, 1, False, [{"score": 1.0}], workers)
    while checkpoint._queue.qsize():  # until the thread has taken it
        time.sleep(0.001)
    checkpoint.save_end(1, 1, False, [{"score": 1.0}], workers)
    release.set()
    with pytest.raises(OSError, match="no space left"):
        checkpoint.flush()
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save_end(2, 1, False, [{"score": 1.0}], workers)
    checkpoint.close()
    assert Checkpoint(tmp_path, {}, seed=0).ends == {}


def test_a_disk_that_fails_ends_the_search(data, tmp_path, monkeypatch):
    def full(path):
        raise OSError("no space left on device")

    monkeypatch.setattr("accelerando.search._checkpoint.atomic_write", full)
    search = HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, max_iter=9, client=None, checkpoint=tmp_path,
        random_state=0,
    )  # fmt: skip
    with pytest.raises(OSError, match="no space left") as failed:
        search.fit(*data)
    assert str(tmp_path) in failed.value.__notes__[0]
    # What was learned is still there.
    assert search.stop_reason_ == "checkpoint"
    assert search.best_estimator_.calls_ == search.n_iter_ > 0
    monkeypatch.undo()
    search.fit(*data)
    assert search.stop_reason_ == "finished"
    assert search.metadata_ == search.metadata
