"""Run by the interpreter of Dask-ML's own environment: its Hyperband on sleeping models."""

import json
import sys
import time

import numpy as np
from dask.distributed import Client, LocalCluster
from dask_ml.model_selection import HyperbandSearchCV

from _search_model import Sleeper


def main(workers: int, seconds: float, max_iter: int) -> None:
    space = {"quality": np.linspace(0, 1, 1000)}
    X, y = np.zeros((100, 2)), np.zeros(100)
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        HyperbandSearchCV(Sleeper(), space, max_iter=3, random_state=0).fit(X, y)  # warm up
        search = HyperbandSearchCV(
            Sleeper(seconds=seconds), space, max_iter=max_iter, random_state=0
        )
        start = time.perf_counter()
        search.fit(X, y)
        wall = time.perf_counter() - start
        calls = search.metadata_["partial_fit_calls"]
        took = float(np.mean([row["partial_fit_time"] for row in search.history_]))
    print(json.dumps({"wall": wall, "calls": int(calls), "call_took": took}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
