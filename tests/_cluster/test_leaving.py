"""Workers that give notice: their ranks leave before they end, and no update is lost."""

import signal
import time

import pytest
import torch
from distributed import Client

from accelerando.sync import PeriodicAveraging
from tests._cluster.helpers import Paced, cluster_of, send_signal, when
from tests.leftovers import check_nothing_left
from tests.nets import classifier, parameters_of

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def net_of(client, ranks, **params):
    settings = {"batch_size": 32, "examples_per_worker": 32 // ranks, "max_epochs": 8, "lr": 0.05}
    settings |= {"module": Paced, "module__seconds": 0.01, "train_split": None}
    return classifier(client=client, **{**settings, **params})


@pytest.fixture(scope="module")
def data(digits):
    return digits[0][:320].astype("float64"), digits[1][:320]


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def terminate(client, worker):
    send_signal(client, worker, signal.SIGTERM)


def retire(client, worker):
    client.retire_workers([worker])


def close_gracefully(client, worker):
    """What a worker does at the end of its lifetime."""

    def close(dask_worker):
        dask_worker.loop.add_callback(dask_worker.close_gracefully)

    client.run(close, workers=[worker])


def events(net):
    return [entry["event"] for entry in net.world_log_]


@pytest.mark.parametrize(
    ("notice", "ranks"), [(terminate, 1), (terminate, 2), (retire, 1), (close_gracefully, 2)]
)
def test_a_rank_leaves_before_its_worker(data, notice, ranks):
    with cluster_of(3) as cluster, Client(cluster) as client:
        client.run(torch.set_default_dtype, torch.float64)
        net = net_of(client, ranks)
        left = []

        def leave():
            worker = net._trainer_.membership[0].worker
            left.append(worker)
            notice(client, worker)

        thread = when(net, 12, leave)
        net.fit(*data)
        thread.join()
        frame = net.updates_frame()
        assert frame["update"].tolist() == list(range(1, 81))
        assert "lost" not in events(net), net.world_log_
        assert "silent" not in events(net), net.world_log_
        assert events(net).count("left") == 1, net.world_log_
        while left[0] in client.scheduler_info()["workers"]:
            time.sleep(0.01)  # it ends after its rank left
        check_nothing_left(client)
    alone = net_of(None, ranks).fit(*data)
    torch.testing.assert_close(parameters_of(net), parameters_of(alone), **EXACT)


def test_replicas_average_before_one_of_them_leaves(data):
    with cluster_of(2) as cluster, Client(cluster) as client:
        net = net_of(client, 2, sync=PeriodicAveraging(period=50), batch_size=16, max_workers=2)
        thread = when(net, 12, lambda: terminate(client, net._trainer_.membership[1].worker))
        net.fit(*data)
        thread.join()
        assert events(net).count("left") == 1, net.world_log_
        assert not {"lost", "silent", "unaveraged"} & set(events(net)), net.world_log_


def test_a_worker_that_cannot_be_retired_is_used_again(data):
    """Nobody else can take the data that it holds."""
    with cluster_of(1) as cluster, Client(cluster) as client:
        net = net_of(client, 1)
        thread = when(net, 12, lambda: retire(client, net._trainer_.membership[0].worker))
        net.fit(*data)
        thread.join()
        assert net.position_.update == 80
        assert "leaving" in events(net)
        assert "lost" not in events(net), net.world_log_
