"""The process of the user during and after a fit on a cluster."""

import gc
import threading
import time
import weakref

import dask
import numpy as np
import pytest
import torch
from skorch.callbacks import Callback

from tests._cluster.helpers import Paced, when
from tests.leftovers import check_nothing_left
from tests.nets import classifier, parameters_of


def net_of(client, **params):
    settings = {"min_workers": 2, "max_workers": 2, "max_epochs": 2}
    return classifier(client=client, **{**settings, **params})


@pytest.fixture
def without_collector(client, digits):
    """Cycles would keep what they refer to until the garbage collector runs."""
    net_of(client, max_epochs=1).fit(*digits)  # what is imported leaves cycles
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_users_arrays_are_free_after_a_fit(client, digits, without_collector):
    X, y = digits[0] * 0.25, digits[1].copy()
    arrays = [weakref.ref(X), weakref.ref(y)]
    net_of(client).fit(X, y)
    del X, y
    assert [array() is None for array in arrays] == [True, True]


def test_a_worker_is_as_before_after_training(client, digits):
    def chores(dask_worker):
        callbacks = dask_worker.periodic_callbacks
        return {
            name: callbacks[name].callback_time for name in ("profile", "tick") if name in callbacks
        }

    def settled():
        """The chores once the last rank has ended, a moment after its fit."""
        for _ in range(500):
            found = client.run(chores)
            if all(times["tick"] < 500 for times in found.values()):
                return found
            time.sleep(0.02)
        raise AssertionError(found)

    before = settled()
    net_of(client, max_epochs=1).fit(*digits)
    assert settled() == before


def test_ranks_listen_in_the_range_of_the_setting_and_the_result_is_the_same(client, digits):
    def gloo():
        from accelerando._engine import _torch

        return [ports for _, ports in _torch._gloo_devices], list(_torch._listening().values())

    plain = net_of(client).fit(*digits)
    assert not any(devices for devices, _ in client.run(gloo).values())
    with dask.config.set({"accelerando.ports": "38000:39999"}):
        net = net_of(client).fit(*digits)
    found = [used for devices, used in client.run(gloo).values() if devices == [(38000, 39999)]]
    assert len(found) == 2
    assert all(any(38000 <= port <= 39999 for port in used) for used in found)
    assert torch.equal(parameters_of(net), parameters_of(plain))


def test_a_range_that_is_none_is_refused_before_any_work(client, digits):
    with (
        dask.config.set({"accelerando.ports": "all"}),
        pytest.raises(ValueError, match=r"accelerando.ports must be a range .* Got 'all'"),
    ):
        net_of(client).fit(*digits)
    check_nothing_left(client)


def test_no_thread_of_a_fit_is_left(client, digits):
    before = set(threading.enumerate())
    net_of(client, max_epochs=1).fit(*digits)
    assert not [t for t in set(threading.enumerate()) - before if "accelerando" in t.name]
    check_nothing_left(client)


def test_signals_are_live_while_an_epoch_is_trained(client, digits):
    X, y = (np.concatenate([part] * 4) for part in digits)
    net = net_of(client, module=Paced, module__seconds=0.02, max_epochs=1, train_split=None)
    seen = []

    def look():
        seen.append((net.signals(), len(net._state_.records.updates)))

    thread = when(net, 10, look)
    net.fit(X, y)
    thread.join()
    signals, records = seen[0]
    assert records == 0  # the driver has no row of this epoch yet
    assert signals["update"] >= 10
    assert signals["epoch"] == 1
    assert signals["ranks"] == 2
    assert signals["batch_size"] == 64
    assert signals["loss"] > 0
    # Afterwards it is the newest row of the table again.
    newest = net.updates_frame().iloc[-1]
    assert net.signals()["update"] == newest["update"] == len(X) // 64 + 1
    assert net._trainer_ is None


class Log(Callback):
    """Logs a line with each epoch."""

    def on_epoch_end(self, net, **kwargs):
        net._trainer_.tasks.log("test", "A line of the log.")


def test_log_and_progress_are_printed_if_the_user_wants_it(client, digits, capsys):
    net = net_of(client, module=Paced, verbose=1, callbacks=[("log", Log())]).fit(*digits)
    printed = capsys.readouterr().out
    assert "A line of the log." in printed
    assert [entry["text"] for entry in net.world_log_] == ["A line of the log."] * 2
    assert all(abs(entry["time"] - time.time()) < 3600 for entry in net.world_log_)
    quiet = net_of(client, module=Paced, callbacks=[("log", Log())]).fit(*digits)
    assert capsys.readouterr().out == ""
    assert len(quiet.world_log_) == 2


def test_the_trainer_is_there_during_a_fit_only(client, digits):
    seen = []

    class Look(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append([info.worker for info in net._trainer_.membership])

    net = net_of(client, callbacks=[("look", Look())]).fit(*digits)
    workers = set(client.run(int))
    assert len(seen) == 2
    assert all(len(set(members)) == 2 and set(members) <= workers for members in seen)
    assert net._trainer_ is None
