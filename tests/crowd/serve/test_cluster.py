"""Query search on a Dask cluster."""

import numpy as np
from distributed import LocalCluster

from accelerando import _dask
from accelerando.crowd._noise import TSTE
from accelerando.crowd._posterior import Posterior
from accelerando.crowd.serve import cluster
from accelerando.crowd.serve.cluster import ClusterSearch


def test_a_large_search_runs_on_a_cluster_and_here_when_the_cluster_is_gone(caplog):
    positions = np.random.default_rng(0).normal(size=(400, 2))
    posterior = Posterior(positions, positions[:50], np.zeros((400, 50)), TSTE())
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as running:
        search = ClusterSearch(running.scheduler_address, seconds=0.2)
        found = search(posterior, heads=[0, 1, 2], top=2, random_state=0)
        search.close()
    assert sorted(set(found.queries[:, 0].tolist())) == [0, 1, 2]
    assert len(found.queries) == 6
    assert found.n_scored > 1000
    search = ClusterSearch("tcp://127.0.0.1:9", seconds=0.1, patience=1)
    assert len(search(posterior, heads=[5], random_state=0).queries) == 1
    assert "because the cluster failed" in caplog.text


def test_workers_with_other_versions_get_nothing(monkeypatch, caplog):
    """They could not load it, and would leave the cluster."""
    positions = np.random.default_rng(0).normal(size=(8, 2))
    posterior = Posterior(positions, positions[:2], np.zeros((8, 2)), TSTE())
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as running:
        search = cluster.ClusterSearch(running.scheduler_address, seconds=0.05)
        addresses = [worker.address for worker in running.workers.values()]
        here = {**_dask.versions_here(("accelerando", "numpy"))}
        answers = {addresses[0]: {**here, "accelerando": None}, addresses[1]: here}
        monkeypatch.setattr(_dask, "versions_of", lambda *_: answers)
        search(posterior, heads=[0], random_state=0)
        assert "because the cluster failed" not in caplog.text
        assert f"Worker {addresses[0]} is not used" in caplog.text
        assert search._fit_workers() == [addresses[1]]
        answers[addresses[1]] = answers[addresses[0]]
        search._same.clear()
        search(posterior, heads=[0], random_state=0)
        assert "none of the 2 workers has the same versions" in caplog.text
