"""Plugins of a run: who serves the mailbox, and what is told of workers that are about to leave."""

import signal
import threading
from types import SimpleNamespace

import dask
import pytest
from distributed import Client, LocalCluster

from accelerando._cluster import plugins as module
from accelerando._cluster.mailbox import Mailbox, MailboxGone
from accelerando._cluster.messages import (
    LeaveRequested,
    RankReady,
    SendState,
    WorkerJoined,
    WorkerLeft,
)
from accelerando._cluster.plugins import MailboxPlugin, open_mailbox
from accelerando._dask import workers_of
from accelerando.exceptions import ClusterError
from tests.leftovers import check_nothing_left


@pytest.fixture
def small():
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


def plugins(client):
    return client.run_on_scheduler(
        lambda dask_scheduler: [name for name in dask_scheduler.plugins if "accelerando" in name]
    )


def test_the_scheduler_serves_the_mailbox_and_reports_workers(small):
    cluster, client = small
    with open_mailbox(client, "run-1") as mailbox:
        assert plugins(client) == ["accelerando-run-1"]
        assert not isinstance(mailbox.store, type(None))
        events = mailbox.events()
        cluster.scale(2)
        joined = events.next(30.0)
        assert isinstance(joined, WorkerJoined)
        while workers_of(client)[joined.worker]["status"] != "running":
            threading.Event().wait(0.01)
        client.retire_workers([joined.worker], close_workers=True)
        assert events.next(30.0) == LeaveRequested(joined.worker)
        assert events.next(30.0) == WorkerLeft(joined.worker, retired=True)
        mailbox.send("rank-0", SendState("state/1", ("REPLICAS",)))
        inbox = Mailbox(mailbox.address).inbox("rank-0")
        assert inbox.next(10.0) == SendState("state/1", ("REPLICAS",))
        inbox.close()
        events.close()
    assert plugins(client) == []


@pytest.mark.parametrize("served_by", ["scheduler", "driver"])
def test_the_mailbox_is_in_the_range_of_the_setting_which_travels_with_it(
    small, monkeypatch, served_by
):
    _, client = small
    if served_by == "driver":
        monkeypatch.setattr(module, "_address", lambda name, dask_scheduler=None: None)
    with (
        dask.config.set({"accelerando.ports": "36000:36999"}),
        open_mailbox(client, "run-1") as mailbox,
    ):
        assert 36000 <= mailbox.address.port <= 36999
        assert tuple(mailbox.address.ports) == (36000, 36999)
    with open_mailbox(client, "run-2") as mailbox:
        assert mailbox.address.ports is None


def registered(dask_worker):
    return [type(plugin).__name__ for plugin in dask_worker.plugins.values()]


def test_the_store_goes_with_the_drivers_client(small):
    cluster, observer = small
    with Client(cluster) as driver:
        context = open_mailbox(driver, "run-2")
        mailbox = context.__enter__()
        address = mailbox.address
        rank = Mailbox(address)
        rank.report(RankReady("rank-0"))
        assert module.LeavePlugin.__name__ in str(observer.run(registered))
    check_nothing_left(observer)
    with pytest.raises(MailboxGone):
        for _ in range(1000):
            rank.connect()


def test_a_mailbox_without_a_port_is_an_error_that_names_the_range(small, monkeypatch):
    def taken(host, ports):
        raise OSError("No port of 36000:36099 (accelerando.ports) is free on 127.0.0.1")

    monkeypatch.setattr(module, "serve_store", taken)
    _, client = small
    with (
        pytest.raises(ClusterError, match=r"has no port, .*36000:36099.* a wider range"),
        open_mailbox(client, "run-4"),
    ):
        pass
    assert plugins(client) == []


def test_the_driver_serves_the_mailbox_if_the_scheduler_cannot(small, monkeypatch):
    _, client = small

    async def start(self, scheduler):
        raise ImportError("no torch")

    monkeypatch.setattr(module.MailboxPlugin, "start", start)
    with open_mailbox(client, "run-3") as mailbox:
        events = mailbox.events()
        Mailbox(mailbox.address).report(RankReady("rank-0"))
        assert events.next(10.0) == RankReady("rank-0")
        events.close()
    assert plugins(client) == []


def change(before, after):
    return {"action": "worker-status-change", "prev-status": before, "status": after}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([("init", "running"), ("running", "paused"), ("paused", "running")], [WorkerLeft("a")]),
        # retired: Dask forgets the worker before it ends
        (
            [("running", "closing_gracefully")],
            [LeaveRequested("a"), WorkerLeft("a", retired=True)],
        ),
        # closed: the scheduler forgets it when it has ended
        ([("running", "closing")], [LeaveRequested("a"), WorkerLeft("a")]),
        (
            [("running", "closing_gracefully"), ("closing_gracefully", "closing")],
            [LeaveRequested("a"), LeaveRequested("a"), WorkerLeft("a")],
        ),
        # Dask found nobody who could take its data
        (
            [("running", "closing_gracefully"), ("closing_gracefully", "running")],
            [LeaveRequested("a"), WorkerJoined("a"), WorkerLeft("a")],
        ),
    ],
)
def test_what_the_scheduler_tells(changes, told):
    plugin, seen = MailboxPlugin("run-4", "client"), []
    plugin.mailbox = type("Fake", (), {"report": staticmethod(seen.append)})
    plugin.log_event("a", {"action": "heartbeat"})
    plugin.log_event("a", "a line of text")
    for before, after in changes:
        plugin.log_event("a", change(before, after))
    plugin.remove_worker(None, "a", stimulus_id="x")
    assert seen == told


# -- SIGTERM --------------------------------------------------------------------------------------


def test_a_second_sigterm_does_not_wait_for_ranks(monkeypatch):
    """The first one waits in a thread, so that the process can receive another."""
    started, before = [], object()
    handlers = []
    fake = SimpleNamespace(SIGTERM=signal.SIGTERM, signal=lambda *args: handlers.append(args))
    thread = SimpleNamespace(start=lambda: started.append(len(handlers)))
    monkeypatch.setattr(module, "signal", fake)
    monkeypatch.setattr(module, "_handler", before)
    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=lambda **kwargs: thread))
    module._terminate()
    assert handlers == [(signal.SIGTERM, before)]
    assert started == [1], "the handler is set before the thread may end the process"


def test_only_ranks_of_this_process_are_awaited(monkeypatch):
    """A worker without a rank does not bother its driver; the process ends when all have left."""
    busy = {"a": 2, "b": 0}
    told, ended = [], []

    def kill(*args):
        ended.append((args, dict(busy)))

    def ranks_on(worker):
        busy[worker] -= busy[worker] > 0 and worker in told
        return busy[worker]

    made = {
        name: SimpleNamespace(worker=name, report=lambda name=name: told.append(name))
        for name in busy
    }
    monkeypatch.setattr(module, "ranks_on", ranks_on)
    monkeypatch.setattr(module, "_registered", made)
    monkeypatch.setattr(module, "os", SimpleNamespace(getpid=lambda: 7, kill=kill))
    module._leave_and_end()
    assert told == ["a"]
    assert ended == [((7, signal.SIGTERM), {"a": 0, "b": 0})]
