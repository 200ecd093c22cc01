"""Workers ignore the driver's Ctrl-C while a fit or a search runs on them."""

import pickle
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import cloudpickle
import pytest
from distributed import Client

from accelerando import _dask
from accelerando._cluster import plugins
from accelerando._cluster.address import Address
from tests.leftovers import check_nothing_ignored, check_nothing_left
from tests.pickles import imported_by


def test_workers_of_the_same_terminal_ignore_ctrl_c_until_the_last_fit_ends():
    before = signal.getsignal(signal.SIGINT)
    first, second = plugins.WorkerShield("first"), plugins.NannyShield("second")
    try:
        first.setup(None)
        second.setup(None)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        first.teardown(None)
        first.teardown(None)  # counts once
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        second.teardown(None)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["group", "host", "thread"])
def test_other_workers_keep_their_handler(where):
    before = signal.getsignal(signal.SIGINT)
    shield = plugins.WorkerShield("shield")
    shield.group += where == "group"
    shield.host += "x" if where == "host" else ""
    if where == "thread":
        thread = threading.Thread(target=shield.setup, args=(None,))
        thread.start()
        thread.join()
    else:
        shield.setup(None)
    assert signal.getsignal(signal.SIGINT) is before
    assert not shield.active


def test_a_shield_leaves_a_handler_alone_that_somebody_else_has_set():
    before, shield = signal.getsignal(signal.SIGINT), plugins.WorkerShield("shield")
    try:
        shield.setup(None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        shield.teardown(None)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def sigint(dask_worker):
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return ignored, [name for name in dask_worker.plugins if "shield" in str(name)]


def test_a_shield_is_on_all_workers_while_it_is_needed(client):
    with plugins.shielded(client):
        inside = client.run(sigint)
        assert all(ignored for ignored, _ in inside.values())
        assert all(len(names) == 1 for _, names in inside.values())
    assert set(map(str, client.run(sigint).values())) == {"(False, [])"}


@pytest.mark.parametrize("kind", [plugins.Owner, plugins.WorkerShield])
def test_ctrl_c_while_a_shield_is_registered_leaves_none_behind(kind, client, monkeypatch):
    register = client.register_plugin

    def interrupted(plugin):
        register(plugin)
        if isinstance(plugin, kind):
            raise KeyboardInterrupt

    monkeypatch.setattr(client, "register_plugin", interrupted)
    with pytest.raises(KeyboardInterrupt), plugins.shielded(client):
        pass
    assert set(map(str, client.run(sigint).values())) == {"(False, [])"}


def test_a_driver_that_is_gone_leaves_no_shield(client):
    with Client(client.scheduler.address) as driver:
        shield = plugins.shielded(driver)
        shield.__enter__()
        assert all(ignored for ignored, _ in client.run(sigint).values())
    check_nothing_left(client)
    check_nothing_ignored(client)


def lose(name, dask_worker):
    """Return a plugin that is still on its way, as it is while a worker starts."""
    plugin = dask_worker.plugins.pop(name)
    plugin.teardown()
    return cloudpickle.dumps(plugin)


async def arrive(sent, dask_worker):
    await dask_worker.plugin_add(plugin=sent)


def test_a_shield_that_reaches_a_starting_worker_after_its_end_does_nothing(client):
    with plugins.shielded(client):
        (name,) = next(iter(client.run(sigint).values()))[1]
        worker, sent = client.run(lose, name, workers=[next(iter(client.nthreads()))]).popitem()
    client.run(arrive, sent, workers=[worker])
    assert not any(ignored for ignored, _ in client.run(sigint).values())
    client.run(lose, name, workers=[worker])


HIDE = """
import sys
sys.modules["accelerando"] = None  # as if it were not installed
import pickle
for sent in sys.argv[1:]:
    plugin = pickle.loads(bytes.fromhex(sent))
    print(type(plugin).__name__, type(plugin).__module__, plugin.setup(None))
"""
PLUGINS = [
    plugins.WorkerShield("shield"),
    plugins.NannyShield("shield"),
    plugins.LeavePlugin("leave", Address("10.0.0.1", 8786, "secret", (36000, 36999))),
]


def test_plugins_arrive_on_workers():
    for plugin in PLUGINS:
        found = pickle.loads(pickle.dumps(plugin))
        assert type(found) is type(plugin)
        assert vars(found) == vars(plugin)


def test_workers_without_accelerando_ignore_plugins():
    sent = [pickle.dumps(plugin).hex() for plugin in PLUGINS]
    words = [sys.executable, "-c", HIDE, *sent]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    module = "distributed.diagnostics.plugin"
    expected = [f"{name} {module} None" for name in ("WorkerPlugin", "NannyPlugin", "WorkerPlugin")]
    assert said.splitlines() == expected


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: type(plugin).__name__)
def test_plugins_contain_no_bytecode_which_crashes_another_python(plugin):
    assert imported_by(pickle.dumps(plugin)) <= {
        ("builtins", "eval"),
        ("distributed.diagnostics.plugin", "WorkerPlugin"),
        ("distributed.diagnostics.plugin", "NannyPlugin"),
    }


# -- workers that do not answer -------------------------------------------------------------------


class Answering:
    """A client whose cluster answers in some way."""

    status = "running"

    def __init__(self, answer):
        self.answer, self.called = answer, []

    def register_plugin(self, plugin):
        self.called.append(plugin)
        self.answer()

    def unregister_worker_plugin(self, name, **options):
        self.called.append((name, options))
        self.answer()


def unreachable():
    raise OSError("Timed out trying to connect to tcp://127.0.0.1:9001 after 30 s")


def broken():
    raise RuntimeError("A worker cannot load the plugin.")


def test_a_worker_that_cannot_be_reached_does_not_stop_a_fit(monkeypatch):
    plugin = SimpleNamespace(name="name")
    client = Answering(unreachable)
    plugins.register(client, plugin)
    plugins.unregister(client, "name", nanny=True)
    assert client.called == [plugin, ("name", {"nanny": True})]
    monkeypatch.setattr(_dask, "_ANSWER_SECONDS", 0.01)
    ever = threading.Event()
    client = Answering(ever.wait)
    plugins.register(client, plugin)
    plugins.unregister(client, "name")
    assert client.called == [plugin]
    last = _dask._talking["name"]
    ever.set()
    last.join()
    assert client.called == [plugin, ("name", {"nanny": False})]


def test_a_plugin_that_is_registered_late_is_removed_after_that(monkeypatch):
    monkeypatch.setattr(_dask, "_ANSWER_SECONDS", 0.01)
    answered, order = threading.Event(), []

    class Slow:
        status = "running"

        def register_plugin(self, plugin):
            answered.wait()
            order.append("registered")

        def unregister_worker_plugin(self, name, nanny):
            order.append("removed")

    plugins.register(Slow(), SimpleNamespace(name="late"))
    plugins.unregister(Slow(), "late")
    assert order == []
    last = _dask._talking["late"]
    answered.set()
    last.join()
    assert order == ["registered", "removed"]
    assert "late" not in _dask._talking


def test_nothing_is_asked_of_a_scheduler_that_is_gone():
    client = Answering(unreachable)
    client.status = "connecting"
    plugins.unregister(client, "name")
    assert client.called == []


def test_another_error_of_a_plugin_is_raised():
    with pytest.raises(RuntimeError, match="cannot load"):
        plugins.register(Answering(broken), SimpleNamespace(name="name"))
    plugins.unregister(Answering(broken), "name")  # the fit is over
