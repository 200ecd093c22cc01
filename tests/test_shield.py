"""Workers ignore the driver's Ctrl-C while a fit or a search runs on them."""

import pickle
import signal
import subprocess
import sys
import threading

import cloudpickle
import pytest

from accelerando import _shield


def test_workers_of_the_same_terminal_ignore_ctrl_c_until_the_last_fit_ends():
    before = signal.getsignal(signal.SIGINT)
    first, second = _shield.WorkerShield("first"), _shield.NannyShield("second")
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
    shield = _shield.WorkerShield("shield")
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
    before, shield = signal.getsignal(signal.SIGINT), _shield.WorkerShield("shield")
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
    before = client.run(sigint)  # an earlier test may still be closing its own
    with _shield.shielded(client):
        inside = client.run(sigint)
        assert all(ignored for ignored, _ in inside.values())
        added = {name for _, names in inside.values() for name in names}
        added -= {name for _, names in before.values() for name in names}
        assert len(added) == 1
    after = client.run(sigint)
    assert not any(added & set(names) for _, names in after.values())
    others = {worker for worker, (_, names) in after.items() if names}
    assert not any(after[worker][0] for worker in set(after) - others if not before[worker][0])


HIDE = """
import sys
sys.modules["accelerando"] = None  # as if it were not installed
import pickle
plugin = pickle.loads(bytes.fromhex(sys.argv[1]))
print(type(plugin).__name__, type(plugin).__module__, plugin.setup(None))
"""


@pytest.mark.parametrize("kind", [_shield.WorkerShield, _shield.NannyShield])
def test_a_worker_without_accelerando_ignores_a_shield(kind):
    sent = cloudpickle.dumps(kind("shield"))
    assert vars(pickle.loads(sent)) == vars(kind("shield"))
    assert isinstance(pickle.loads(sent), kind)
    words = [sys.executable, "-c", HIDE, sent.hex()]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    base = "WorkerPlugin" if kind is _shield.WorkerShield else "NannyPlugin"
    assert said.split() == [base, "distributed.diagnostics.plugin", "None"]


# -- workers that do not answer -------------------------------------------------------------------


class Answering:
    """A client whose cluster answers in some way."""

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
    client = Answering(unreachable)
    _shield.register(client, "plugin")
    _shield.unregister(client, "name", nanny=True)
    assert client.called == ["plugin", ("name", {"nanny": True})]
    monkeypatch.setattr(_shield, "_ANSWER_SECONDS", 0.01)
    ever = threading.Event()
    client = Answering(ever.wait)
    _shield.register(client, "plugin")
    _shield.unregister(client, "name")
    ever.set()
    assert client.called == ["plugin", ("name", {})]


def test_another_error_of_a_plugin_is_raised():
    with pytest.raises(RuntimeError, match="cannot load"):
        _shield.register(Answering(broken), "plugin")
    _shield.unregister(Answering(broken), "name")  # the fit is over
