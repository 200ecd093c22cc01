"""Chunks of Dask arrays: rows that stay on the cluster."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from torch.utils.data import Dataset

from accelerando._dask import workers_of
from accelerando.exceptions import ClusterError, UnsupportedError

if TYPE_CHECKING:  # a fit in this process imports this module, and needs nothing of ranks
    from accelerando._cluster.rank_task import Candidates

log = logging.getLogger("accelerando")

_LOOK_SECONDS = 0.2  # between two looks for a worker


class Chunks(Dataset[Any]):
    """Rows on the cluster, known here by the futures and the lengths of their chunks.

    Attributes
    ----------
    futures : list of Future
        A pair ``[X, y]`` of arrays each.
    lengths : list of int
        Their rows.
    classes : array or None
        The classes of integer targets.
    where : dict
        Arguments for Dask that keep other tasks away from workers that cannot load our functions.
    """

    def __init__(
        self, futures: list[Any], lengths: list[int], classes: Any, where: Any = None
    ) -> None:
        self.futures = futures
        self.lengths = lengths
        self.classes = classes
        self.where: dict[str, Any] = where or {}

    def __len__(self) -> int:
        return sum(self.lengths)

    def __getitem__(self, row: int) -> Any:
        raise UnsupportedError(
            "The rows of a Dask array are on the workers and are never gathered in this process. "
            "Score on arrays that are here, or pass train_split=None."
        )


def where_ranks_can_be(client: Any) -> dict[str, Any] | None:
    """Return arguments for Dask that keep tasks away from workers without our packages.

    If all workers that fit are lost, Dask may use the others: a task then fails instead of waiting
    forever. The result is None if no worker fits.
    """
    return _where(client, _candidates(client))


def _candidates(client: Any) -> Candidates:
    from accelerando._cluster.rank_task import Candidates

    return Candidates(client, _note)


def _note(event: str, text: str) -> None:
    log.info("%s", text)


def _where(client: Any, candidates: Candidates) -> dict[str, Any] | None:
    workers = candidates.among(workers_of(client))
    return {"workers": list(workers), "allow_other_workers": True} if workers else None


def _wait_for_worker(client: Any, seconds: float) -> dict[str, Any]:
    """Wait for the first worker that fits; raise with the reason for each one that does not."""
    candidates, demand = _candidates(client), None
    deadline = time.monotonic() + seconds
    while (where := _where(client, candidates)) is None:
        if demand is None:
            demand = client.submit(int, pure=False)  # adaptive clusters start workers for tasks
        if time.monotonic() > deadline:
            from accelerando._cluster.remarks import unused

            said = "".join(f" {sentence}" for sentence in unused(candidates))
            raise ClusterError(
                f"The cluster has had no worker for {seconds:g} s (worker_timeout) to compute the "
                "chunks of X and y. Workers are asked for when training begins: start one before "
                f"fit, for example with cluster.scale(1).{said}"
            )
        time.sleep(_LOOK_SECONDS)
    return where


def compute_chunks(client: Any, X: Any, y: Any, seconds: float) -> Chunks:
    """Let the cluster compute the chunks of two Dask arrays, with the same rows in each pair.

    A cluster without workers may take `seconds` to get one.
    """
    X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    y = y.rechunk({0: X.chunks[0], **dict.fromkeys(range(1, y.ndim), -1)})
    pairs = zip(X.to_delayed().ravel(), y.to_delayed().ravel(), strict=True)
    where = _wait_for_worker(client, seconds)
    futures = client.compute([dask.delayed(_pair)(*pair) for pair in pairs], **where)
    lengths = client.gather(client.map(_length, futures, pure=False, **where))
    classes = None
    if y.dtype.kind in "iub":
        found = client.gather(client.map(_classes, futures, pure=False, **where))
        classes = np.unique(np.concatenate(found))
    return Chunks(futures, lengths, classes, where)


def _pair(X: Any, y: Any) -> list[Any]:
    return [np.ascontiguousarray(X), np.ascontiguousarray(y)]


def _length(pair: list[Any]) -> int:
    return len(pair[0])


def _classes(pair: list[Any]) -> Any:
    return np.unique(pair[1])
