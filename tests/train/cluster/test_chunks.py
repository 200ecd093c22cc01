"""Dask arrays that stay in their chunks."""

import os
import signal

import dask.array as da
import numpy as np
import pytest
import torch
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from skorch.dataset import Dataset
from skorch.helper import predefined_split

from accelerando.batch_size import AdaDamp
from accelerando.exceptions import UnsupportedError
from accelerando.train.cluster.chunks import ShardFeed, chunked_order, share_out
from tests.nets import classifier, parameters_of, regressor
from tests.train.cluster.test_failure import Paced, cluster, when  # noqa: F401

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
    assert net.run_.examples == 600


@pytest.mark.parametrize(
    "params",
    [{"module__norm": True}, {"batch_size": AdaDamp(initial=32, dwell=3)}, {"batch_size": 2}],
    ids=["batchnorm", "a policy that measures", "shares that are empty"],
)
def test_ranks_do_not_change_the_result(client, digits, params):
    few, many = (net_of(client, n, max_epochs=2, **params).fit(*arrays(digits)) for n in (1, 3))
    torch.testing.assert_close(parameters_of(many), parameters_of(few), **TOLERANCE)


def test_a_lost_chunk_is_computed_again(cluster, digits):  # noqa: F811
    with Client(cluster) as client:
        quiet = net_of(client, 3, max_epochs=6, module=Paced).fit(*arrays(digits))
        net = net_of(client, 3, max_epochs=6, module=Paced, module__seconds=0.01)

        def kill():
            worker = net.drive_.members[1].worker
            os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)

        killer = when(net, 10, kill)
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
    assert net.run_.examples == 3 * 120


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


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 5))
def test_the_order_visits_every_row_once_and_mixes_chunks(lengths, epoch):
    order = chunked_order(1, epoch, lengths)
    assert sorted(order.tolist()) == list(range(sum(lengths)))
    chunk_of = np.repeat(np.arange(len(lengths)), lengths)[order]
    half = len(order) // 2
    for number, n in enumerate(lengths):
        assert abs((chunk_of[:half] == number).sum() - n * half / max(1, len(order))) <= 2


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), st.sampled_from("abcx")),
)
def test_every_chunk_has_one_place(lengths, holders):
    given = share_out(lengths, holders, ["a", "b", "c"])
    assert sorted(n for numbers in given.values() for n in numbers) == list(range(len(lengths)))
    assert sum(bool(numbers) for numbers in given.values()) == min(3, len(lengths))


def test_there_are_no_more_ranks_than_chunks(client, digits):
    X, y = digits
    net = net_of(client, 3, max_epochs=1).fit(*arrays(digits, chunk=300))
    assert set(net.updates_frame()["ranks"]) == {2}
    expected = in_this_process(X, y, chunked_order(0, 0, [300, 300]))
    torch.testing.assert_close(parameters_of(net), parameters_of(expected), **TOLERANCE)


def test_a_feed_gives_the_rows_of_the_chunks_it_holds():
    feed = ShardFeed([2, 3, 1])
    feed.hold({2: [np.array([50.0]), np.array([5])], 0: [np.array([10.0, 11.0]), np.array([0, 1])]})
    assert feed.share(np.arange(6), None).tolist() == [0, 1, 5]
    assert [leaf.tolist() for leaf in feed.gather(np.array([5, 1]))] == [[50.0, 11.0], [5, 1]]
