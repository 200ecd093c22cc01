"""Query search on a Dask cluster."""

import numpy as np
from distributed import LocalCluster

from accelerando.crowd._noise import TSTE
from accelerando.crowd._posterior import Posterior
from accelerando.crowd.serve.cluster import ClusterSearch


def test_a_large_search_runs_on_a_cluster_and_here_when_the_cluster_is_gone(caplog):
    positions = np.random.default_rng(0).normal(size=(400, 2))
    posterior = Posterior(positions, positions[:50], np.zeros((400, 50)), TSTE())
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        search = ClusterSearch(cluster.scheduler_address, seconds=0.2)
        found = search(posterior, heads=[0, 1, 2], top=2, random_state=0)
        search.close()
    assert sorted(set(found.queries[:, 0].tolist())) == [0, 1, 2]
    assert len(found.queries) == 6
    assert found.n_scored > 1000
    search = ClusterSearch("tcp://127.0.0.1:9", seconds=0.1, patience=1)
    assert len(search(posterior, heads=[5], random_state=0).queries) == 1
    assert "because the cluster failed" in caplog.text
