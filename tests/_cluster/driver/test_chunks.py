"""Chunks of Dask arrays: they are computed where ranks can be, and nowhere else."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from accelerando._cluster.driver.chunks import (
    Chunks,
    compute_chunks,
    where_ranks_can_be,
)
from accelerando.exceptions import ClusterError, UnsupportedError
from tests._cluster.helpers import without_torch

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 3


def test_chunks_are_not_computed_on_workers_without_our_packages(client, monkeypatch):
    bare, *others = client.nthreads()
    without_torch(monkeypatch).add(bare)
    arrays = da.from_array(X, chunks=(2, 1)), da.from_array(Y, chunks=5)
    chunks = compute_chunks(client, *arrays, seconds=30.0)
    assert chunks.lengths == [2] * 10
    assert chunks.classes.tolist() == [0, 1, 2]
    holders = {w for workers in client.who_has(chunks.futures).values() for w in workers}
    assert holders <= set(others)
    assert set(chunks.where["workers"]) == set(others)


def test_a_cluster_on_which_nothing_fits_is_named(client, monkeypatch):
    without_torch(monkeypatch).update(client.nthreads())
    assert where_ranks_can_be(client) is None
    said = "no worker for 0 s .worker_timeout.*Workers that cannot be used: .* has no torch"
    with pytest.raises(ClusterError, match=said):
        compute_chunks(client, da.from_array(X, chunks=(5, 2)), da.from_array(Y, chunks=5), 0.0)


def test_an_adaptive_cluster_that_is_empty_starts_a_worker_for_chunks():
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=1, interval="50ms")
        chunks = compute_chunks(
            client, da.from_array(X, chunks=(10, 2)), da.from_array(Y, chunks=10), 60.0
        )
        assert chunks.lengths == [10, 10]


def test_rows_of_chunks_are_not_gathered_here():
    chunks = Chunks([], [3, 4], None)
    assert len(chunks) == 7
    with pytest.raises(UnsupportedError, match="never gathered"):
        chunks[0]
