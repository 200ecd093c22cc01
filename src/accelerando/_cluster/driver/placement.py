"""Training data on the workers: sent once, kept while the user's arrays exist, read in place."""

from __future__ import annotations

import math
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from dask.base import tokenize
from torch.utils.data import default_collate

from accelerando._cluster.messages import RankId
from accelerando._dask import send_to
from accelerando._engine.data.chunks import ChunkFeed, share_out
from accelerando._engine.data.feed import ArrayFeed, Feed, Order, Rows, leaves, map_leaves
from accelerando._engine.data.loader import LoaderFeed, check_repeatable
from accelerando._engine.data.stream import StreamFeed
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._cluster.driver.chunks import Chunks

# Per client: what is on the cluster, by content. An entry goes when the user's arrays go.
_kept: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


# -- how a rank reads the data --------------------------------------------------------------------


@dataclass
class Placed:
    """Data on a worker: arrays, or data sets."""

    content: Any


class FeedPlan(Protocol):
    """Instructions for a rank to read the training set."""

    def build(self, data: Placed) -> Feed:
        """Return the feed, on a worker."""


@dataclass
class ArrayPlan:
    """Read batches from the placed arrays."""

    subset: Rows | None
    order: Order
    drop_last: bool

    def build(self, data: Placed) -> Feed:
        arrays = _thaw(data.content)
        return ArrayFeed(arrays, self.subset, order=self.order, drop_last=self.drop_last)


@dataclass
class ChunkPlan:
    """Read batches from chunks that the driver assigns with each segment."""

    lengths: list[int]
    drop_last: bool

    def build(self, data: Placed) -> Feed:
        return ChunkFeed(self.lengths, drop_last=self.drop_last)


@dataclass
class LoaderPlan:
    """Read batches from the placed data set through a DataLoader."""

    options: dict[str, Any]
    order: Order | None
    drop_last: bool
    loader: type[Any]

    def build(self, data: Placed) -> Feed:
        dataset, drop_last, loader = data.content[0], self.drop_last, self.loader
        options = self.options
        if options.get("num_workers"):
            # A fork would keep this worker's sockets open, so that others would not notice its end.
            options = {"multiprocessing_context": "spawn", **options}
        if self.order is None:
            return StreamFeed(dataset, options, drop_last=drop_last, loader=loader)
        return LoaderFeed(dataset, options, order=self.order, drop_last=drop_last, loader=loader)


def plan_feed(feed: Feed, options: dict[str, Any], loader: type[Any]) -> FeedPlan:
    """Return how a rank reads the training set that `feed` reads here.

    Parameters
    ----------
    feed : Feed
        The driver's.
    options, loader
        The arguments and the class of the DataLoader.
    """
    if options.get("sampler") is not None:
        raise UnsupportedError(
            "iterator_train__sampler draws its own order, which would differ from rank to rank. "
            "On a cluster leave it out (each epoch is shuffled by random_state), or train in this "
            "process (client=None)."
        )
    if isinstance(feed, ChunkFeed):
        if not options.get("shuffle", True):
            raise UnsupportedError(
                "iterator_train__shuffle=False keeps the order of the rows, and with "
                'data="shard" the order mixes the chunks. Leave it out.'
            )
        return ChunkPlan(feed.lengths, feed.drop_last)
    if isinstance(feed, ArrayFeed):
        return ArrayPlan(feed.subset, feed.order, feed.drop_last)
    if isinstance(feed, LoaderFeed):
        check_repeatable(feed)
    rest = {k: v for k, v in options.items() if k not in ("shuffle", "drop_last", "sampler")}
    return LoaderPlan(rest, getattr(feed, "order", None), feed.drop_last, loader)


@dataclass
class ValidationPlan:
    """Read validation batches by their numbers.

    Attributes
    ----------
    subset : array or None
        Rows of the placed arrays.
    rows : int
        Rows of a batch.
    n_examples : int
        Rows of the validation set.
    in_arrays : bool
        Whether they are in the same arrays as the training rows.
    """

    subset: Rows | None
    rows: int
    n_examples: int
    in_arrays: bool

    @property
    def n_batches(self) -> int:
        """The number of batches."""
        return math.ceil(self.n_examples / self.rows)

    def build(self, data: Placed) -> Callable[[int], Any]:
        """Return a function from a number to a batch ``(X, y)``, on a worker."""
        if self.in_arrays:
            gather: Callable[[Rows], Any] = ArrayFeed(_thaw(data.content), self.subset).gather
        else:
            dataset = data.content[1]

            def gather(rows: Rows) -> Any:
                return default_collate([dataset[int(row)] for row in rows])

        def batch(number: int) -> Any:
            start = number * self.rows
            return gather(np.arange(start, min(start + self.rows, self.n_examples)))

        return batch


def shares_memory(some: Any, others: Any) -> bool:
    """Return True if two trees of arrays are the same memory."""
    ours, theirs = leaves(some), leaves(others)
    return len(ours) == len(theirs) and all(map(_same_memory, ours, theirs))


def _same_memory(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.data_ptr() == b.data_ptr() and a.shape == b.shape
    return a is b or (
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.shares_memory(a, b)
    )


# -- sending the data -----------------------------------------------------------------------------


def content_of(feed: Feed, validation_set: Any) -> Any:
    """Return what has to be on the workers for a feed."""
    if isinstance(feed, ChunkFeed):
        return None
    if isinstance(feed, ArrayFeed):
        return map_leaves(_freeze, feed.data)
    assert isinstance(feed, LoaderFeed | StreamFeed)
    return [feed.dataset, validation_set]


def place(
    client: Any, content: Any, owners: Sequence[Any], worker: str, *, again: bool = False
) -> Any:
    """Return a Dask future of the data, which is on the cluster already after the first fit.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    content : object
        See :func:`content_of`.
    owners : sequence
        The user's arrays: the data stay on the cluster while they exist. Empty for data that are
        sent anew with each fit.
    worker : str
        Receives the data; other workers fetch them from it.
    again : bool
        Send the data even if the status of their future is "finished": who had them is gone.
    """
    if not owners:
        return _scatter(client, content, worker)
    token = tokenize(content)
    with _lock:
        kept = _kept.setdefault(client, {})
        future = kept.get(token)
        if future is None or future.status != "finished" or again:
            future = _scatter(client, content, worker)
            kept[token] = future
            for array in owners:
                weakref.finalize(array, kept.pop, token, None)
    return future


def _scatter(client: Any, content: Any, worker: str) -> Any:
    try:
        return send_to(client, Placed(content), worker)
    except (TypeError, AttributeError, PicklingError) as error:
        kind = type(content[0]).__name__
        cause = error.__cause__ or error
        raise UnsupportedError(
            f"The {kind} cannot be sent to the workers: {cause}. Open files and generators in "
            "__getitem__ or __iter__, pass a function without arguments that returns the Dataset, "
            "or train in this process (client=None)."
        ) from error
    except Exception as error:
        if type(error) is not Exception:  # so Dask says what a worker raised
            raise
        raise UnsupportedError(
            f"The {type(content[0]).__name__} cannot be loaded on worker {worker}: {error}. "
            "Install its module on all workers, or send it with client.upload_file."
        ) from error


def _freeze(leaf: Any) -> Any:
    """Return a NumPy array: it is sent without a copy, and PyTorch shares its memory."""
    convertible = isinstance(leaf, torch.Tensor) and leaf.is_cpu and leaf.dtype != torch.bfloat16
    return leaf.numpy() if convertible else leaf


def _thaw(content: Any) -> Any:
    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.memmap):
            return leaf
        with warnings.catch_warnings():
            # What Dask received is not writable, and nobody writes to it.
            warnings.simplefilter("ignore")
            return torch.from_numpy(leaf)

    return map_leaves(convert, content)


# -- chunks of Dask arrays ------------------------------------------------------------------------


@dataclass
class ChunkAssignment:
    """Which rank trains on which chunks, from one segment to the next.

    Attributes
    ----------
    client : distributed.Client
        Of the cluster.
    run : str
        The name of the run.
    chunks : Chunks or None
        None if every rank has all rows.
    """

    client: Any
    run: str
    chunks: Chunks | None
    _holders: dict[int, RankId] = field(default_factory=dict)
    _deposits: list[Any] = field(default_factory=list)  # a dropped future cancels its task

    def assign(
        self, workers: Mapping[RankId, str], intact: Mapping[RankId, bool], segment: int
    ) -> dict[RankId, tuple[tuple[int, ...], str | None]]:
        """Return for each rank its chunks, and the name under which new ones arrive.

        Parameters
        ----------
        workers : mapping
            The worker of each member.
        intact : mapping
            Whether a member is known to hold the chunks that it was given last.
        segment : int
            The number of the segment.
        """
        if self.chunks is None:
            return dict.fromkeys(workers, ((), None))
        before = self._holders
        given = share_out(
            self.chunks.lengths, before or self._where_dask_has_them(workers), list(workers)
        )
        self._holders = {n: rank for rank, numbers in given.items() for n in numbers}
        self._deposits = []
        assigned: dict[RankId, tuple[tuple[int, ...], str | None]] = {}
        for rank, worker in workers.items():
            missing = [n for n in given[rank] if before.get(n) != rank or not intact[rank]]
            name = f"{self.run}/{rank}/{segment}" if missing else None
            assigned[rank] = (tuple(given[rank]), name)
            if missing:
                futures = [self.chunks.futures[number] for number in missing]
                options = {"workers": [worker], "pure": False, "priority": 1000}
                self._deposits.append(
                    self.client.submit(deposit, name, missing, *futures, **options)
                )
        return assigned

    def _where_dask_has_them(self, workers: Mapping[RankId, str]) -> dict[int, RankId]:
        assert self.chunks is not None
        has = self.client.who_has(self.chunks.futures)
        holders = {}
        for number, future in enumerate(self.chunks.futures):
            here = [rank for rank, worker in workers.items() if worker in has.get(future.key, ())]
            if here:
                holders[number] = here[0]
        return holders


# Chunks that Dask has brought to this worker and that the rank on it has not taken yet.
_deposited: dict[str, dict[int, list[Any]]] = {}


def deposit(name: str, numbers: list[int], *chunks: list[Any]) -> None:
    """Keep chunks for a rank on this worker; a task, so that Dask moves or recomputes them."""
    _deposited[name] = dict(zip(numbers, chunks, strict=True))


def withdraw(name: str) -> dict[int, list[Any]] | None:
    """Return the chunks that were deposited under a name; None if they have not arrived."""
    return _deposited.pop(name, None)
