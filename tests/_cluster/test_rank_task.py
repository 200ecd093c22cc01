"""The task in which a rank lives: a fake client on the driver, a fake worker on the worker."""

import contextlib
import errno
import gc
import os
import pickle
import threading
import traceback
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
from distributed.client import ClosedClientError

from accelerando._cluster import messages, rank_task
from accelerando._cluster.address import Address
from accelerando._cluster.driver.placement import Placed
from accelerando._cluster.mailbox import Mailbox
from accelerando._cluster.messages import TaskEnd
from accelerando._cluster.plugins import serve_store
from accelerando._cluster.rank_task import RankTasks, serve
from tests._cluster.worker.plain import PlainBuilder, spec_of, start_state
from tests._engine.comm.ranks import data_of, fit_of, model_of

# -- on the driver ---------------------------------------------------------------------------------


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

    def scatter(self, content, workers, hash=True):
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
    assert arguments[2:] == (("10.0.0.1", 99, "", None), "rank-0")
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


def test_a_scheduler_without_the_packages_is_named_as_the_cause(client):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    future = future_of(client)
    text = "Error during deserialization of the task graph. This frequently\noccurs if ..."
    future.status, future.error = "error", RuntimeError(text)
    end = tasks.ended()["rank-0"]
    assert end.status == "unreachable"
    assert end.reason.startswith("the Dask scheduler cannot load what this process sends.")
    assert "reach" not in end.reason


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Cannot resolve 10.0.0.9 to a (local) address"),
        OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)),
    ],
)
def test_a_worker_whose_address_is_that_of_another_machine(client, error):
    tasks = tasks_of(client)
    tasks.start("rank-0", "tcp://a:1")
    future = future_of(client)
    future.status, future.error = "error", error
    end = tasks.ended()["rank-0"]
    assert end.status == "unreachable"
    assert end.reason.startswith(str(error))
    assert "--contact-address" in end.reason


def test_a_client_behind_a_tunnel_is_named_as_the_cause(client):
    tasks = tasks_of(client)
    tasks.address = tasks.address._replace(host="127.0.0.1")
    tasks.start("rank-0", "tcp://a:1")
    future = future_of(client)
    future.status, future.error = "error", OSError("refused")
    reason = tasks.ended()["rank-0"].reason
    assert reason.startswith("refused. It has to reach 127.0.0.1:99, and the other workers. That")
    assert "through a tunnel or a proxy" in reason


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


def test_a_client_that_gives_up_while_a_task_is_cancelled_has_none_left(client, monkeypatch):
    tasks = tasks_of(client)
    assert tasks.start("rank-0", "tcp://a:1")

    def cancel(force):
        raise ClosedClientError("Client is closed. Can't send cancel-keys message.")

    monkeypatch.setattr(future_of(client), "cancel", cancel)
    tasks.close()
    assert tasks.ended() == {}


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
    monkeypatch.setattr(rank_task, "time", clock)
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


# -- on a worker -----------------------------------------------------------------------------------


class FakeWorker:
    address = "tcp://127.0.0.1:1234"
    state = SimpleNamespace(nthreads=3)

    def __init__(self):
        self.events = []
        chore = SimpleNamespace(callback_time=20.0)
        self.periodic_callbacks = {"tick": chore}

    def log_event(self, topic, facts):
        self.events.append((topic, facts))


@pytest.fixture
def worker(monkeypatch):
    fake = FakeWorker()
    monkeypatch.setattr(rank_task, "get_worker", lambda: fake)
    monkeypatch.setattr(rank_task, "secede", lambda: None)
    return fake


@pytest.fixture
def mailbox():
    store = serve_store("127.0.0.1")
    return Mailbox(Address("127.0.0.1", store.port), store)


@contextlib.contextmanager
def serving(mailbox, builder=None):
    """Run the task in a thread; yield the driver's events and how the task ends."""
    sealed = cloudpickle.dumps(spec_of(builder=builder))
    ended = []

    def run():
        try:
            ended.append(serve(sealed, Placed(list(data_of())), tuple(mailbox.address), "rank-0"))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    events = mailbox.events()
    thread.start()
    try:
        yield events, ended
    finally:
        mailbox.send("rank-0", messages.Stop())
        thread.join(30.0)
        events.close()


def test_a_task_trains_until_it_is_stopped(worker, mailbox):
    with serving(mailbox) as (events, ended):
        assert events.next(60.0) == messages.RankReady("rank-0")
        assert worker.periodic_callbacks["tick"].callback_time == 500.0
        mailbox.put("start", start_state(model_of()))
        command = messages.TrainSegment(1, 1, 0, 1, source=0, blob="start", epoch=0, until=1)
        mailbox.send("rank-0", command)
        while not isinstance(event := events.next(60.0), messages.SegmentEnded):
            assert event is not None
        assert event.outcome == "epoch"
        assert worker.events[0][0] == "topic"
        assert worker.events[0][1]["update"] == 1
        assert ended == []
    assert ended == [None]
    assert worker.periodic_callbacks["tick"].callback_time == 20.0


class Threads(PlainBuilder):
    """Records the threads of the process while a rank is built."""

    seen: list = []  # noqa: RUF012  shared with the pickled copy, which is of the same class

    def build(self):
        Threads.seen.append((torch.get_num_threads(), threading.current_thread().name))
        return super().build()


def test_a_rank_uses_the_threads_of_its_worker_in_a_thread_of_its_own(worker, mailbox):
    before = torch.get_num_threads()
    Threads.seen.clear()
    with serving(mailbox, Threads()) as (events, _):
        events.next(60.0)
    assert Threads.seen == [(3, "rank-0")]  # Dask's profiler does not look into that thread
    assert torch.get_num_threads() == before


class Broken(PlainBuilder):
    def build(self):
        raise LookupError("the module's own trouble")


def test_an_error_while_a_rank_starts_is_the_tasks(worker, mailbox):
    with serving(mailbox, Broken()) as (_, ended):
        pass
    assert isinstance(ended[0], LookupError)


class BrokenStep(PlainBuilder):
    def build(self):
        built = super().build()

        def trouble(batch, *place, **alone):
            raise LookupError("the callback's own trouble")

        built.gradients_ready = trouble
        return built


def test_an_error_in_training_is_raised_when_the_driver_has_what_it_needs(worker, mailbox):
    with serving(mailbox, BrokenStep()) as (events, ended):
        events.next(60.0)
        mailbox.put("start", start_state(model_of()))
        command = messages.TrainSegment(1, 1, 0, 1, source=0, blob="start", epoch=0, until=1)
        mailbox.send("rank-0", command)
        raised = events.next(60.0)
        assert raised == messages.RankRaised("rank-0", 0, 0, 0, begun=True)
        assert ended == []  # it answers until Stop
    (error,) = ended
    assert isinstance(error, LookupError)
    assert any(frame.name == "trouble" for frame in traceback.extract_tb(error.__traceback__))


def test_a_driver_that_is_gone_ends_the_task(worker):
    store = serve_store("127.0.0.1")
    address = Address("127.0.0.1", store.port)
    mailbox = Mailbox(address, store)
    sealed = cloudpickle.dumps(spec_of())
    ended = []

    def run():
        ended.append(serve(sealed, Placed(list(data_of())), tuple(address), "rank-0"))

    thread = threading.Thread(target=run, daemon=True)
    events = mailbox.events()
    thread.start()
    assert events.next(60.0) == messages.RankReady("rank-0")
    events.close()
    del mailbox, store, events  # the process that serves the store ends
    gc.collect()
    thread.join(60.0)
    assert ended == [None]


# -- which workers can run a rank -----------------------------------------------------------------

HERE = {"python": "3.11.7.final.0", "torch": "2.9.1+cpu", "skorch": "1.2", "accelerando": "1.0"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"torch": "2.9.1+cu128", "python": "3.11.2.final.0"}, None),
        ({"torch": "2.8.0"}, "has torch 2.8.0, and this process has 2.9.1"),
        ({"python": "3.12.0.final.0"}, "has Python 3.12, and this process has 3.11"),
        ({"accelerando": "0.9"}, "has accelerando 0.9, and this process has 1.0"),
        ({"accelerando": None, "torch": None}, "has no accelerando, no torch"),
    ],
)
def test_versions_that_fit(changes, why):
    assert rank_task.misfit(HERE, {**HERE, **changes}) == why


def test_a_package_that_is_not_installed_here_is_not_asked_for_there():
    assert rank_task.misfit({**HERE, "accelerando": None}, {**HERE, "accelerando": None}) is None
