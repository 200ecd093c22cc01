"""The Dask tasks of ranks; a fake client."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from accelerando._cluster.driver import tasks as module
from accelerando._cluster.driver.tasks import RankTasks
from accelerando._cluster.mailbox import Address
from accelerando._cluster.messages import TaskEnd
from accelerando._cluster.worker.task import serve
from tests._engine.comm.ranks import fit_of, model_of


class FakeFuture:
    def __init__(self, status="pending", error=None):
        self.status, self.error = status, error
        self.released = self.cancelled = False

    def done(self):
        return self.status != "pending"

    def exception(self, timeout=None):
        return self.error

    def traceback(self):
        try:
            raise KeyError
        except KeyError as error:
            return error.__traceback__

    def cancel(self, force=False):
        self.cancelled = force

    def release(self):
        self.released = True


class FakeClient:
    def __init__(self):
        self.scattered, self.submitted = [], {}
        self.fails = None

    def scatter(self, content, hash=True):
        assert not hash
        if self.fails is not None:
            raise self.fails
        self.scattered.append(content)
        return FakeFuture("finished")

    def submit(self, function, *arguments, key, **options):
        self.submitted[key] = (function, arguments, options, future := FakeFuture())
        return future


@pytest.fixture
def client():
    return FakeClient()


def tasks_of(client, **settings):
    defaults = {
        "builder": "builder",
        "feed": "feed",
        "validation": None,
        "content": [np.arange(3)],
        "owners": [],
        "log": [],
        "verbose": False,
    }
    job = SimpleNamespace(client=client, fit=fit_of(model_of()), **{**defaults, **settings})
    return RankTasks(job, Address("10.0.0.1", 99), "run", "topic")


def future_of(client, rank="rank-0"):
    return client.submitted[f"accelerando-run-{rank}"][3]


def test_a_task_is_pinned_to_its_worker_and_comes_first(client):
    tasks = tasks_of(client)
    assert tasks.start("rank-0", "tcp://a:1")
    function, arguments, options, _ = client.submitted["accelerando-run-rank-0"]
    assert function is serve
    assert arguments[2:] == (("10.0.0.1", 99), "rank-0")
    assert options == {
        "workers": ["tcp://a:1"],
        "allow_other_workers": False,
        "pure": False,
        "retries": 0,
        "priority": 1000,
    }


def test_the_spec_is_sent_as_bytes_that_every_rank_opens_itself(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    data, sealed = client.scattered
    assert data.content[0].tolist() == [0, 1, 2]
    spec = pickle.loads(sealed)
    assert (spec.builder, spec.topic, spec.micro_batch.whole) == ("builder", "topic", True)


def test_data_are_sent_once_and_again_when_they_are_lost(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    tasks.start("rank-1", "tcp://b:1")
    assert len(client.scattered) == 2
    tasks._data[1].status = "lost"  # with the only worker that had them
    tasks.start("rank-2", "tcp://b:1")
    assert len(client.scattered) == 4
    sent = list(tasks._data)
    tasks.resend_data()
    assert all(future.released for future in sent)
    tasks.start("rank-3", "tcp://b:1")
    assert len(client.scattered) == 6


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError("gone")])
def test_data_that_cannot_be_sent_start_no_rank(client, error):
    tasks = tasks_of(client)
    client.fails = error
    assert not tasks.start("rank-0", "tcp://a:1")
    assert client.submitted == {}
    client.fails = None
    assert tasks.start("rank-0", "tcp://a:1")


class KilledWorker(Exception):
    pass


@pytest.mark.parametrize(
    ("status", "error", "found"),
    [
        ("pending", None, None),
        ("finished", None, TaskEnd("finished")),
        ("cancelled", None, TaskEnd("cancelled")),
        ("lost", None, TaskEnd("cancelled")),
        ("error", KilledWorker("it died"), "killed"),
        ("error", OSError("no route"), "unreachable"),
        ("error", RuntimeError("no route"), "unreachable"),
        ("error", LookupError("mine"), TaskEnd("raised", "'mine'")),
    ],
)
def test_how_a_task_ended(client, status, error, found):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    future = future_of(client)
    future.status, future.error = status, error
    ended = tasks.ended().get("rank-0")
    if isinstance(found, str):
        assert ended.status == found
        assert ended.reason == f"{error}. It has to reach 10.0.0.1:99, and the other workers."
    elif found is not None and found.status == "raised":
        assert ended == TaskEnd("raised", str(error))
    else:
        assert ended == found


def test_a_users_error_is_raised_with_its_remote_traceback(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    future = future_of(client)
    future.status, future.error = "error", LookupError("mine")
    with pytest.raises(LookupError, match="mine") as caught:
        tasks.raise_from("rank-0")
    assert any(entry.name == "traceback" for entry in caught.traceback)
    assert future.released
    assert tasks.ended() == {}


def test_the_cause_of_a_failure_is_the_exception_of_its_task(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    future_of(client).error = error = OSError("no route")
    assert tasks.exception_of("rank-0") is error
    assert tasks.exception_of("rank-0") is None


def test_a_cancelled_task_is_forgotten(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    tasks.cancel("rank-0")
    tasks.cancel("rank-0")
    assert future_of(client).cancelled
    assert tasks.ended() == {}


def test_waiting_ends_with_the_tasks_or_with_the_time(client, monkeypatch):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    future = future_of(client)
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            future.status = "finished"

    now = iter(range(100))
    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: next(now))
    monkeypatch.setattr(module, "time", clock)
    tasks.wait(["rank-0", "unknown"], seconds=50)
    assert len(naps) == 3
    future.status = "pending"
    tasks.wait(["rank-0"], seconds=5)
    assert future.status == "pending"


def test_nothing_is_left_when_the_run_is_over(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    spec, data = tasks._data
    tasks.close()
    assert future_of(client).cancelled
    assert spec.released
    assert not data.released  # it stays on the cluster while the user's arrays exist


def test_the_log_is_a_list_and_printed_if_the_user_wants_it(client, capsys):
    tasks = tasks_of(client)
    tasks.log("lost", "A worker left.")
    (entry,) = tasks.job.log
    assert (entry["event"], entry["text"]) == ("lost", "A worker left.")
    assert capsys.readouterr().out == ""
    tasks.job.verbose = True
    tasks.log("lost", "Another left.")
    assert capsys.readouterr().out == "Another left.\n"
