"""The number of ranks follows the batch; clusters that grow, shrink, adapt or are shared."""

import gc
import threading
import time

import numpy as np
import pytest
import torch
from distributed import Client
from skorch.callbacks import Callback, EpochScoring

from accelerando.batch_size import GeoDamp, Schedule
from accelerando.exceptions import UnsupportedError
from tests._cluster.helpers import Paced, Wait, cluster_of
from tests.leftovers import check_nothing_left
from tests.nets import classifier, parameters_of

TOLERANCE = {"rtol": 1e-3, "atol": 5e-5}
SCHEDULE = Schedule({0: 16, 2: 64, 4: 32})


def net_of(client, **params):
    settings = {"batch_size": SCHEDULE, "examples_per_worker": 16, "max_epochs": 6, "lr": 0.05}
    settings["callbacks"] = [("wait", Wait())]
    return classifier(client=client, **{**settings, **params})


@pytest.fixture(scope="module")
def quiet(digits):
    return net_of(None).fit(*digits)


def test_ranks_follow_the_batch_up_and_down(client, digits, quiet):
    net = net_of(client).fit(*digits)
    frame = net.updates_frame()
    by_epoch = frame.groupby("epoch")["ranks"].max()
    assert by_epoch.tolist() == [1, 1, 4, 4, 2, 2]
    # A schedule is known ahead: the ranks are warm when their epoch begins.
    assert frame.groupby("epoch")["ranks"].min().tolist() == [1, 1, 4, 4, 2, 2]
    torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)
    assert (frame["bytes"] > 0).tolist() == (frame["ranks"] > 1).tolist()
    check_nothing_left(client)


def test_a_cluster_that_can_scale_is_asked_and_given_back(cold, digits, quiet):
    with cluster_of(1) as cluster, Client(cluster) as client:
        sizes = set()
        stop = threading.Event()

        def look():
            while not stop.wait(0.01):
                sizes.add(len(cluster.worker_spec))

        threading.Thread(target=look, daemon=True).start()
        net = net_of(client, max_workers=2, batch_size=Schedule({0: 16, 1: 64, 4: 16}))
        net.fit(*digits)
        stop.set()
        assert 2 in net.updates_frame()["ranks"].tolist()
        assert sizes == {1, 2}
        assert len(cluster.worker_spec) == 1


def test_an_adaptive_cluster(digits, quiet):
    with cluster_of(0) as cluster, Client(cluster) as client:
        cluster.adapt(minimum=1, maximum=2)
        net = net_of(client, max_workers=2).fit(*digits)
        torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)
        assert cluster._adaptive.minimum == 1


def test_two_fits_at_once_and_foreign_tasks(client, digits, quiet):
    stop = threading.Event()
    done = []

    def foreign():
        while not stop.is_set():
            done.append(client.submit(lambda x: x + 1, len(done), pure=False).result())

    nets = [net_of(client), net_of(client)]
    threads = [threading.Thread(target=net.fit, args=digits) for net in nets]
    other = threading.Thread(target=foreign)
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    other.join()
    assert len(done) > 5
    for net in nets:
        torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)
    check_nothing_left(client)


def test_auto_does_not_go_past_the_knee(client, digits):
    """Here more ranks only wait longer."""
    net = net_of(
        client, batch_size=64, max_workers="auto", max_epochs=30, module=Slowing, verbose=0
    ).fit(*digits)
    ranks = net.updates_frame()["ranks"]
    assert ranks.iloc[-1] == 1
    assert 2 in ranks.tolist()
    assert 4 not in ranks.tolist()
    assert any(entry["event"] == "knee" for entry in net.world_log_)


class Slowing(Paced):
    """Fewer rows take longer: what no real model does, but what communication looks like."""

    def forward(self, x):
        time.sleep(0.001 if len(x) > 40 else 0.01)
        return self.net(x)


def test_data_are_sent_once(client, digits):
    X, y = digits[0] * 0.5, digits[1]  # what no other test has sent

    def placed(dask_scheduler):
        return {key for key in dask_scheduler.tasks if "Placed" in str(key)}

    before = client.run_on_scheduler(placed)
    net_of(client, max_epochs=1).fit(X, y)
    first = client.run_on_scheduler(placed) - before
    net_of(client, max_epochs=1).fit(X, y)
    assert client.run_on_scheduler(placed) - before == first
    assert len(first) == 1
    X[:] = 0  # the same array with other numbers is other data
    other = net_of(client, max_epochs=1, batch_size=32, train_split=None).fit(X, y)
    assert len(client.run_on_scheduler(placed) - before) == 2
    alone = net_of(None, max_epochs=1, batch_size=32, train_split=None).fit(X, y)
    torch.testing.assert_close(parameters_of(other), parameters_of(alone), **TOLERANCE)
    del X, other, alone
    while client.run_on_scheduler(placed) & first:
        gc.collect()
        time.sleep(0.01)


class Watcher(Callback):
    def __init__(self):
        self.accuracies = []

    def on_epoch_end(self, net, dataset_valid=None, **kwargs):
        X, y = zip(*dataset_valid, strict=True)
        self.accuracies.append(np.mean(net.predict(np.stack(X)) == np.array(y)))


class PerBatch(Callback):
    def on_batch_end(self, net, **kwargs):
        pass


def test_callbacks_see_up_to_date_parameters_at_epoch_ends(client, digits):
    watcher = Watcher()
    net = net_of(client, callbacks=[("watcher", watcher)]).fit(*digits)
    np.testing.assert_allclose(watcher.accuracies, net.history[:, "valid_acc"])


@pytest.mark.parametrize(
    ("callback", "way_out"),
    [
        (PerBatch(), "on_epoch_end"),
        (EpochScoring("accuracy", on_train=True), "use_caching=False"),
    ],
)
def test_a_callback_that_wants_every_batch_is_refused(client, digits, callback, way_out):
    with pytest.raises(UnsupportedError, match=way_out):
        net_of(client, callbacks=[("mine", callback)]).fit(*digits)
    check_nothing_left(client)


def test_a_callback_may_change_parameters(client, digits):
    class Halve(Callback):
        def on_epoch_end(self, net, **kwargs):
            with torch.no_grad():
                for parameter in net.module_.parameters():
                    parameter.mul_(0.5)

    alone = net_of(None, callbacks=[("halve", Halve())]).fit(*digits)
    net = net_of(client, callbacks=[("halve", Halve())]).fit(*digits)
    torch.testing.assert_close(parameters_of(net), parameters_of(alone), **TOLERANCE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_workers": 0},
        {"examples_per_worker": 0},
        {"min_workers": 3, "max_workers": 2},
        {"rank_timeout": 0},
        {"client": 3},
        {"checkpoint_every": 0},
    ],
)
def test_wrong_settings_are_told_before_training(client, digits, wrong):
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        net_of(**{"client": client, **wrong}).fit(*digits)


def test_growing_batches_with_geodamp(client, digits):
    settings = {"batch_size": GeoDamp(initial=16, delay=2, factor=2), "max_batch_size": 32}
    net, alone = net_of(client, **settings).fit(*digits), net_of(None, **settings).fit(*digits)
    torch.testing.assert_close(parameters_of(net), parameters_of(alone), **TOLERANCE)
