"""The adapter for Dask: what it does, and that the private names it uses still exist."""

import signal
import threading
from types import SimpleNamespace

import dask
import pytest
from distributed import Client, LocalCluster, SchedulerPlugin, Status, _signals
from distributed.deploy.adaptive import Adaptive

from accelerando import _dask
from accelerando._cluster import plugins
from accelerando._dask import quiet_worker, stop_listening

# -- private names --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def here(cluster):
    """A client of a cluster in this process."""
    with Client(cluster) as client:
        yield client


def needs(thing, name, used_by):
    assert hasattr(thing, name), (
        f"distributed has no {type(thing).__name__}.{name} any more; accelerando._dask.{used_by} "
        "depends on it"
    )
    return getattr(thing, name)


def test_identity_of_the_scheduler(here):
    identity = needs(here.scheduler, "identity", "workers_of")
    answer = here.sync(identity, n_workers=-1)
    assert set(here.run(int)) == set(answer["workers"]), "identity() lists the workers by address"
    assert all("nthreads" in facts for facts in answer["workers"].values())


def test_topics_of_the_scheduler(cluster):
    scheduler = cluster.scheduler
    topics = needs(needs(scheduler, "_broker", "drop_late"), "_topics", "drop_late")
    assert hasattr(topics["accelerando-test"], "subscribers")
    topics.pop("accelerando-test")
    needs(scheduler, "loop", "drop_late")


def test_plugins_of_the_scheduler(cluster):
    assert isinstance(needs(cluster.scheduler, "plugins", "plugin_of"), dict)


@pytest.mark.parametrize("name", ["plan", "scale", "_adaptive", "_supports_scaling"])
def test_size_of_a_cluster(cluster, name):
    needs(cluster, name, "can_scale")


def test_bounds_of_an_adaptive_cluster():
    adaptive = Adaptive(None, minimum=1, maximum=3, interval=None)
    assert needs(adaptive, "minimum", "adaptive_of") == 1
    assert needs(adaptive, "maximum", "adaptive_of") == 3


def test_chores_of_a_worker(cluster):
    worker = next(iter(cluster.workers.values()))
    chores = needs(worker, "periodic_callbacks", "quiet_worker")
    assert set(_dask._CHORES) <= set(chores)
    for name in _dask._CHORES:
        needs(chores[name], "callback_time", "quiet_worker")


# -- workers --------------------------------------------------------------------------------------


def test_the_clients_own_update_does_not_make_the_cluster_look_empty(here):
    stop = threading.Event()

    def update():  # as the client does every other second
        while not stop.is_set():
            here.sync(here._update_scheduler_info)

    thread = threading.Thread(target=update)
    thread.start()
    try:
        seen = [_dask.workers_of(here) for _ in range(300)]
    finally:
        stop.set()
        thread.join()
    present = set(here.run(int))
    assert present
    assert all(set(workers) == present for workers in seen)
    assert {worker["nthreads"] for worker in seen[0].values()} == {1}


def test_an_unreachable_scheduler_leaves_what_was_known_last():
    def sync(*args, **kwargs):
        raise OSError("Connection refused")

    client = SimpleNamespace(
        scheduler=SimpleNamespace(identity=None),
        sync=sync,
        scheduler_info=lambda n_workers: {"workers": {"tcp://a:1": {}}},
    )
    assert _dask.workers_of(client) == {"tcp://a:1": {}}
    client.scheduler, client.scheduler_info = None, lambda n_workers: {}  # a closed client
    assert _dask.workers_of(client) == {}


def test_this_machine_as_others_see_it():
    assert _dask.host_towards("tcp://127.0.0.1:8786") == "127.0.0.1"
    assert _dask.host_of("tcp://[::1]:8786") == "::1"


# -- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_dropped_with_its_events(cluster, here, monkeypatch):
    topics = cluster.scheduler._broker._topics
    monkeypatch.setattr(_dask, "_LATE_SECONDS", 0.0)
    heard = threading.Event()
    here.subscribe_topic("accelerando-run", lambda event: heard.set())
    here.log_event("accelerando-run", {"update": 1})
    assert heard.wait(10.0)
    assert "accelerando-run" in topics
    stop_listening(here, "accelerando-run")
    assert "accelerando-run" not in topics


def test_an_event_that_is_late_is_dropped_too():
    calls = []
    topics = {"run": 1}
    scheduler = SimpleNamespace(
        loop=SimpleNamespace(call_later=lambda seconds, *call: calls.append((seconds, call))),
        _broker=SimpleNamespace(_topics=topics),
    )
    _dask.drop_late(scheduler, "run")
    [(seconds, (pop, *args))] = calls
    assert seconds == 2.0
    pop(*args)
    assert topics == {}


# -- processes that do not answer -----------------------------------------------------------------


def test_a_worker_whose_heartbeat_is_old_hangs(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(_dask.time, "monotonic", lambda: clock[0])
    beats, found = _dask.Heartbeats(), []
    for second in range(13):
        facts = {"a": {"last_seen": 5.0}, "b": {"last_seen": 5.0 + second}, "c": {}}
        found.append(beats.missing(facts))
        clock[0] += 1.0
    assert found == [()] * 11 + [("a",)] * 2
    clock[0] += 60.0  # nobody looked, so nothing is known
    assert beats.missing({"a": {"last_seen": 5.0}}) == ()


class Scattering:
    """A client whose ``scatter`` ends when `answer` does."""

    def __init__(self, answer):
        self.answer, self.sent = answer, []

    def scatter(self, content, *, workers, hash):
        self.sent.append((content, workers, hash))
        return self.answer()


@pytest.mark.parametrize("beats", [[1.0] * 9, [1.0, 2.0, 3.0] + [3.0] * 9])
def test_what_is_sent_to_a_worker_without_heartbeats_is_not_awaited(monkeypatch, beats):
    asked, ever = [], threading.Event()
    monkeypatch.setattr(_dask, "_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(_dask, "_SILENT_SECONDS", 0.035)

    def workers_of(client):
        asked.append(client)
        return {"a": {"last_seen": beats[len(asked) - 1]}}

    monkeypatch.setattr(_dask, "workers_of", workers_of)
    with pytest.raises(TimeoutError, match=r"Worker a hangs\."):
        _dask.send_to(Scattering(ever.wait), "data", "a")
    assert len(asked) == len(set(beats)) + 4
    ever.set()


def test_what_is_sent_to_a_worker_returns_or_raises_what_dask_does():
    client = Scattering(lambda: "future")
    assert _dask.send_to(client, "data", "a") == "future"
    assert client.sent == [("data", ["a"], False)]

    def left():
        raise KeyError("a")

    with pytest.raises(KeyError):
        _dask.send_to(Scattering(left), "data", "a")


# -- the chores of a worker -----------------------------------------------------------------------


def worker_with(**milliseconds):
    chores = {name: SimpleNamespace(callback_time=time) for name, time in milliseconds.items()}
    return SimpleNamespace(periodic_callbacks=chores)


def times_of(worker):
    return {name: chore.callback_time for name, chore in worker.periodic_callbacks.items()}


def test_chores_are_rare_inside_and_as_before_afterwards():
    before = {"profile": 10.0, "tick": 20.0, "heartbeat": 900.0}
    worker = worker_with(**before)
    with quiet_worker(worker):
        assert times_of(worker) == {"profile": 500.0, "tick": 500.0, "heartbeat": 900.0}
        with quiet_worker(worker):
            pass
        assert times_of(worker)["profile"] == 500.0
    assert times_of(worker) == before


def test_chores_that_a_user_made_rarer_stay():
    worker = worker_with(tick=2000.0)
    with quiet_worker(worker):
        assert times_of(worker) == {"tick": 2000.0}


def test_chores_come_back_after_an_error():
    worker = worker_with(tick=20.0)
    with pytest.raises(OSError, match="gone"), quiet_worker(worker):
        raise OSError("gone")
    assert times_of(worker) == {"tick": 20.0}


def test_a_worker_without_chores_is_left_alone():
    with quiet_worker(SimpleNamespace()):
        pass


def test_versions_of_workers_are_asked_without_pickles(client):
    workers = list(_dask.workers_of(client))
    found = _dask.versions_of(client, [*workers, "tcp://127.0.0.1:1"], ["torch", "no-such"], 3)
    assert set(found) == set(workers)
    here = _dask.versions_here(["torch", "no-such"])
    assert here["no-such"] is None
    assert all(there["torch"] == here["torch"] for there in found.values())


# -- workers that are about to leave --------------------------------------------------------------


def test_the_scheduler_logs_a_change_of_status(client):
    """The name of the event, and the statuses of a worker that is retired."""
    worker = next(iter(_dask.workers_of(client)))

    def change(dask_scheduler):
        seen = []
        plugin = SchedulerPlugin()
        plugin.log_event = lambda topic, event: seen.append(
            (topic, plugins.change_of_status(event))
        )
        dask_scheduler.plugins["look"] = plugin
        try:
            state = dask_scheduler.workers[worker]
            for status in (Status.closing_gracefully, Status.running):
                dask_scheduler.handle_worker_status_change(status, state, "test")
        finally:
            del dask_scheduler.plugins["look"]
        return [row for row in seen if row[1] is not None]

    assert client.run_on_scheduler(change) == [
        (worker, ("running", "closing_gracefully")), (worker, ("closing_gracefully", "running")),
    ]  # fmt: skip
    assert _dask.closing_among(_dask.workers_of(client)) == ()
    assert _dask.closing_among({"a": {"status": "closing"}, "b": {"status": "running"}}) == ("a",)


def test_where_sigterm_ends_a_worker(client):
    def look(dask_worker):
        ranks = _dask.ranks_on(dask_worker)
        return plugins.is_closing(dask_worker), bool(dask_worker.nanny), ranks

    assert set(client.run(look).values()) == {(False, True, 0)}
    before = signal.getsignal(signal.SIGTERM)

    def handler(*_):
        """The one that wait_for_signals sets."""

    handler.__module__ = _signals.wait_for_signals.__module__
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert plugins.ends_by_sigterm(SimpleNamespace(nanny="tcp://a:1"))
        assert not plugins.ends_by_sigterm(SimpleNamespace(nanny=None)), "a process of the user"
        signal.signal(signal.SIGTERM, handler)
        assert plugins.ends_by_sigterm(SimpleNamespace(nanny=None)), "dask worker --no-nanny"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_scheduler_counts_the_demand_of_its_clients(client):
    def target(dask_scheduler):
        return dask_scheduler.handlers["adaptive_target"](target_duration="5s")

    before = client.run_on_scheduler(target)
    _dask.show_demand(client, "one", 40)
    _dask.show_demand(client, "other", 2)
    assert client.run_on_scheduler(target) == 42
    client.run_on_scheduler(_dask._set_demand, "gone", "a client that is gone", 100)
    assert client.run_on_scheduler(target) == 42
    for name in ("one", "other", "gone"):
        _dask.show_demand(client, name, 0)
    assert client.run_on_scheduler(target) == before


def test_a_scheduler_without_accelerando_is_shown_no_demand():
    class Bare:
        id = "client"

        def run_on_scheduler(self, *words):
            raise ModuleNotFoundError("No module named 'accelerando'")

    _dask.show_demand(Bare(), "one", 40)


# -- ports ----------------------------------------------------------------------------------------


def test_the_range_of_ports_is_a_setting_of_dask():
    assert _dask.port_range() is None
    for text, ports in (("36000:36999", (36000, 36999)), ("1024:1123", (1024, 1123)),
                        ("65436:65535", (65436, 65535))):  # fmt: skip
        with dask.config.set({"accelerando.ports": text}):
            assert _dask.port_range() == ports


@pytest.mark.parametrize(
    "text", ["", "36000", 36000, "36000-36999", "36000:36098", "1000:2000", "65000:65536",
             "36999:36000", "a:b", ":", "-1:99999", [36000, 36999]],
)  # fmt: skip
def test_another_range_of_ports_is_refused_with_what_came(text):
    with (
        dask.config.set({"accelerando.ports": text}),
        pytest.raises(ValueError, match=r"accelerando.ports must be a range of 100 ports .* Got"),
    ):
        _dask.port_range()
