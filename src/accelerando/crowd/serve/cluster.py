"""Query search on a Dask cluster: every worker scores different random pairs."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

import numpy as np

from accelerando.crowd._posterior import Posterior
from accelerando.crowd._search import SearchResult, search

__all__ = ["ClusterSearch", "merge"]

log = logging.getLogger("accelerando.crowd.worker")

_PACKAGES = ("accelerando", "numpy")
_ANSWER_SECONDS = 3.0  # for a worker to say which versions it has


class ClusterSearch:
    """Search on the workers of a Dask scheduler, or in this process if they are unreachable.

    Parameters
    ----------
    scheduler : str
        Address, for example ``tcp://10.0.0.5:8786``.
    seconds : float
        Duration of the search on each worker.
    patience : float, default=5
        Seconds to wait for the scheduler.
    """

    def __init__(self, scheduler: str, seconds: float, patience: float = 5.0) -> None:
        self.scheduler, self.seconds, self.patience = scheduler, seconds, patience
        self._client: Any = None
        self._same: dict[str, bool] = {}  # by worker: whether it can load what is sent

    def __call__(self, posterior: Posterior, **options: Any) -> SearchResult:
        """Return the result of :func:`accelerando.crowd.search` with these options."""
        rng = options.pop("random_state", None)
        seed = int(np.random.default_rng(rng).integers(2**31))
        options |= {"seconds": self.seconds}
        try:
            return self._on_workers(posterior, options, seed)
        except Exception as error:  # the service needs queries whatever happens to the cluster
            log.warning("The search runs in this process, because the cluster failed: %s", error)
            self.close()
            return search(posterior, random_state=seed, **options)

    def _on_workers(self, posterior: Posterior, options: dict[str, Any], seed: int) -> SearchResult:
        from distributed import Client

        if self._client is None:
            self._client = Client(self.scheduler, timeout=self.patience, set_as_default=False)
        workers = self._fit_workers()
        shared = self._client.scatter(posterior, workers=workers, broadcast=True)
        futures = [
            self._client.submit(
                _search_part, shared, options, seed + k, workers=[worker], pure=False
            )
            for k, worker in enumerate(workers)
        ]
        try:
            parts = self._client.gather(futures, errors="raise")
        finally:
            self._client.cancel(futures)
        return merge(parts, int(options.get("top", 1)))

    def _fit_workers(self) -> list[str]:
        """Return the workers with the versions of this process.

        One that cannot load what it is sent leaves the cluster, which others may use, too.
        """
        from accelerando._dask import versions_here, versions_of, workers_of

        workers = list(workers_of(self._client))
        if not workers:
            raise RuntimeError("the cluster has no workers")
        new = [worker for worker in workers if worker not in self._same]
        found = versions_of(self._client, new, _PACKAGES, _ANSWER_SECONDS) if new else {}
        here = _compared(versions_here(_PACKAGES))
        for worker, versions in found.items():
            self._same[worker] = _compared(versions) == here
            if not self._same[worker]:
                log.warning("Worker %s is not used: it has %s.", worker, versions)
        fit = [worker for worker in workers if self._same.get(worker)]
        if not fit:
            raise RuntimeError(
                f"none of the {len(workers)} workers has the same versions of Python, "
                f"{', '.join(_PACKAGES)} as this process"
            )
        return fit

    def close(self) -> None:
        """Close the connection to the cluster."""
        if self._client is not None:
            self._client.close(timeout=5)
            self._client = None


def _compared(versions: dict[str, str | None]) -> tuple[str | None, ...]:
    """Return what has to be equal: Python without its last number, and the packages."""
    python = ".".join(str(versions.get("python")).split(".")[:2])
    return (python, *map(versions.get, _PACKAGES))


def _search_part(posterior: Posterior, options: dict[str, Any], seed: int) -> SearchResult:
    return search(posterior, random_state=seed, **options)


def merge(parts: list[SearchResult], top: int) -> SearchResult:
    """Return the ``top`` best queries of each head among all parts, each query once.

    Examples
    --------
    >>> one = SearchResult(np.array([[0, 1, 2]]), np.array([0.5]), 10)
    >>> two = SearchResult(np.array([[0, 1, 3]]), np.array([0.7]), 10)
    >>> found = merge([one, two], top=1)
    >>> found.queries.tolist(), found.n_scored
    ([[0, 1, 3]], 20)
    """
    best: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for part in parts:
        for (head, left, right), score in zip(
            part.queries.tolist(), part.scores.tolist(), strict=True
        ):
            best[head][left, right] = score
    rows, scores = [], []
    for head, feet in best.items():
        for (left, right), score in sorted(feet.items(), key=lambda pair: -pair[1])[:top]:
            rows.append((head, left, right))
            scores.append(score)
    return SearchResult(
        np.array(rows, dtype=np.intp).reshape(-1, 3),
        np.array(scores),
        sum(part.n_scored for part in parts),
    )
