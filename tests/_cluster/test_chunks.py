"""Dask arrays that stay in their chunks."""

import dask.array as da
import distributed
import numpy as np
import pytest
import torch
from distributed import Client
from skorch.dataset import Dataset
from skorch.helper import predefined_split

from accelerando._engine.data.chunks import chunked_order
from accelerando.batch_size import AdaDamp
from accelerando.exceptions import UnsupportedError
from tests._cluster.helpers import Paced, cluster_of, kill_member, when
from tests.nets import classifier, parameters_of, regressor

TOLERANCE = {"rtol": 1e-3, "atol": 5e-5}


def arrays(digits, chunk=170):
    X, y = digits
    return da.from_array(X, chunks=(chunk, 40)), da.from_array(y, chunks=100)


def net_of(client, ranks, **params):
    settings = {"data": "shard", "train_split": None, "optimizer__momentum": 0.9, "lr": 0.02}
    bounds = {"min_workers": ranks, "max_workers": ranks}
    return classifier(client=client, **{**settings, **bounds, **params})


def in_this_process(X, y, order, **params):
    """Train on the same order of rows without a cluster: the rows sorted by it, not shuffled."""
    net = classifier(
        train_split=None, optimizer__momentum=0.9, lr=0.02, max_epochs=1,
        iterator_train__shuffle=False, **params,
    )  # fmt: skip
    return net.fit(X[order], y[order])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_chunks_train_as_one_array_in_the_same_order_would(client, digits, ranks):
    X, y = arrays(digits)
    net = net_of(client, ranks, max_epochs=1).fit(X, y)
    assert set(net.updates_frame()["ranks"]) == {ranks}
    expected = in_this_process(*digits, chunked_order(0, 0, X.chunks[0]))
    torch.testing.assert_close(parameters_of(net), parameters_of(expected), **TOLERANCE)
    assert net.classes_.tolist() == list(range(10))
    assert net.position_.examples == 600


@pytest.mark.parametrize(
    "params",
    [{"module__norm": True}, {"batch_size": AdaDamp(initial=32, dwell=3)}, {"batch_size": 2}],
    ids=["batchnorm", "a policy that measures", "shares that are empty"],
)
def test_ranks_do_not_change_the_result(client, digits, params):
    few, many = (net_of(client, n, max_epochs=2, **params).fit(*arrays(digits)) for n in (1, 3))
    torch.testing.assert_close(parameters_of(many), parameters_of(few), **TOLERANCE)


def test_a_lost_chunk_is_computed_again(digits):
    with cluster_of(4) as cluster, Client(cluster) as client:
        quiet = net_of(client, 3, max_epochs=6, module=Paced).fit(*arrays(digits))
        net = net_of(client, 3, max_epochs=6, module=Paced, module__seconds=0.01)
        killer = when(net, 10, lambda: kill_member(client, net, 1))
        net.fit(*arrays(digits))
        killer.join()
        torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)
        assert any(entry["event"] == "lost" for entry in net.world_log_)


def test_validation_on_rows_that_are_here(client, digits):
    X, y = digits
    split = predefined_split(Dataset(X[:100], y[:100]))
    net = net_of(client, 2, train_split=split).fit(*arrays((X[100:], y[100:])))
    np.testing.assert_allclose(net.history[-1]["valid_acc"], net.score(X[:100], y[:100]))


def test_regression(client, line):
    X, y = (da.from_array(part, chunks=(50, -1)) for part in line)
    net = regressor(client=client, data="shard", min_workers=2, max_workers=2).fit(X, y)
    assert net.position_.examples == 3 * 120


def test_the_client_need_not_be_the_default_one(client, line, monkeypatch):
    def nobody(given=None):
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed.client, "default_client", nobody)
    X, y = (da.from_array(part, chunks=(50, -1)) for part in line)
    net = regressor(client=client, data="shard", max_workers=1, max_epochs=1).fit(X, y)
    assert net.position_.examples == 120


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"client": None}, "client="),
        ({"data": "replicate"}, "shard"),
        ({"train_split": classifier().train_split}, "train_split=None"),
        ({"data": "scattered"}, "replicate"),
    ],
)
def test_what_cannot_work_is_said(client, digits, params, message):
    X, y = arrays(digits)
    with pytest.raises(ValueError, match=message):
        net_of(**{"client": client, "ranks": 1, **params}).fit(X, y)


def test_labels_that_are_here_are_refused(client, digits):
    with pytest.raises(UnsupportedError, match=r"both dask\.array"):
        net_of(client, 1).fit(arrays(digits)[0], digits[1])


def test_there_are_no_more_ranks_than_chunks(client, digits):
    X, y = digits
    net = net_of(client, 3, max_epochs=1).fit(*arrays(digits, chunk=300))
    assert set(net.updates_frame()["ranks"]) == {2}
    expected = in_this_process(X, y, chunked_order(0, 0, [300, 300]))
    torch.testing.assert_close(parameters_of(net), parameters_of(expected), **TOLERANCE)
