"""The task in which a rank lives; a fake worker."""

import contextlib
import gc
import threading
import traceback
from types import SimpleNamespace

import cloudpickle
import pytest
import torch

from accelerando._cluster import messages
from accelerando._cluster.driver.placement import Placed
from accelerando._cluster.mailbox import Address, Mailbox, serve_store
from accelerando._cluster.worker import task
from tests._cluster.worker.plain import PlainBuilder, spec_of, start_state
from tests._engine.comm.ranks import data_of, model_of


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
    monkeypatch.setattr(task, "get_worker", lambda: fake)
    monkeypatch.setattr(task, "secede", lambda: None)
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
            ended.append(
                task.serve(sealed, Placed(list(data_of())), tuple(mailbox.address), "rank-0")
            )
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

        def trouble(batch):
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
        ended.append(task.serve(sealed, Placed(list(data_of())), tuple(address), "rank-0"))

    thread = threading.Thread(target=run, daemon=True)
    events = mailbox.events()
    thread.start()
    assert events.next(60.0) == messages.RankReady("rank-0")
    events.close()
    del mailbox, store, events  # the process that serves the store ends
    gc.collect()
    thread.join(60.0)
    assert ended == [None]
