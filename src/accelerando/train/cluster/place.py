"""Training data on the workers: sent once, kept while the user's arrays live, read in place."""

from __future__ import annotations

import math
import threading
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from dask.base import tokenize
from skorch.dataset import Dataset as SkorchDataset
from torch.utils.data import DataLoader, Subset, default_collate

from accelerando.exceptions import UnsupportedError
from accelerando.train.cluster.chunks import ShardFeed
from accelerando.train.data import MemoryFeed, in_memory
from accelerando.train.feed import Feed, Order
from accelerando.train.loader import LoaderFeed
from accelerando.train.order import Rows
from accelerando.train.tree import leaves, map_leaves

# Per client: what is on the cluster, by content. Entries go when the user's arrays go.
_kept: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclass
class Placed:
    """What a worker holds of the data: arrays, or data sets."""

    content: Any


@dataclass
class MemoryPlan:
    """Read batches from the placed arrays."""

    subset: Rows | None
    order: Order
    drop_last: bool

    def build(self, data: Placed) -> Feed:
        """Return the feed, on a worker."""
        return MemoryFeed(
            _thaw(data.content), self.subset, order=self.order, drop_last=self.drop_last
        )


@dataclass
class ShardPlan:
    """Read batches from chunks that the driver hands out with each segment."""

    lengths: list[int]

    def build(self, data: Placed) -> Feed:
        """Return the feed, on a worker."""
        return ShardFeed(self.lengths)


@dataclass
class LoaderPlan:
    """Read batches from the placed data set through a DataLoader."""

    options: dict[str, Any]
    order: Order
    drop_last: bool
    loader: type[Any]

    def build(self, data: Placed) -> Feed:
        """Return the feed, on a worker."""
        return LoaderFeed(
            data.content[0],
            self.options,
            order=self.order,
            drop_last=self.drop_last,
            loader=self.loader,
        )


@dataclass
class ValidPlan:
    """Read validation batches by their numbers."""

    subset: Rows | None
    rows: int
    n_examples: int
    in_arrays: bool

    def build(self, data: Placed) -> ValidBatches:
        """Return the batches, on a worker."""
        if self.in_arrays:
            return ValidBatches(MemoryFeed(_thaw(data.content), self.subset).gather, self)
        dataset = data.content[1]
        return ValidBatches(lambda rows: default_collate([dataset[int(row)] for row in rows]), self)

    @property
    def n_batches(self) -> int:
        """How many batches there are."""
        return math.ceil(self.n_examples / self.rows)


@dataclass
class ValidBatches:
    """Validation batches on a worker."""

    gather: Any
    plan: ValidPlan

    def batch(self, number: int) -> Any:
        """Return one batch ``(X, y)``."""
        start = number * self.plan.rows
        return self.gather(np.arange(start, min(start + self.plan.rows, self.plan.n_examples)))


def plan_feed(feed: Feed, options: dict[str, Any], loader: type[Any]) -> Any:
    """Say how a rank reads the training set that `feed` reads here."""
    if options.get("sampler") is not None:
        raise UnsupportedError(
            "iterator_train__sampler draws its own order, which would differ from rank to rank. "
            "On a cluster leave it out (each epoch is shuffled by random_state), or train in this "
            "process (client=None)."
        )
    if isinstance(feed, ShardFeed):
        return ShardPlan(feed.lengths)
    if isinstance(feed, MemoryFeed):
        return MemoryPlan(feed.subset, feed.order, feed.drop_last)
    assert isinstance(feed, LoaderFeed)
    rest = {k: v for k, v in options.items() if k not in ("shuffle", "drop_last", "sampler")}
    return LoaderPlan(rest, feed.order, feed.drop_last, loader)


def plan_valid(net: Any, dataset: Any, feed: Feed) -> ValidPlan | None:
    """Say how a rank reads the validation set; None if only the driver can."""
    options = net.get_params_for("iterator_valid")
    rows = options.pop("batch_size", None)
    if isinstance(feed, ShardFeed):
        return None
    if dataset is None or net.iterator_valid is not DataLoader or any(options.values()):
        return None
    batches = net.get_iterator(dataset, training=False)
    rows = batches.rows if hasattr(batches, "rows") else rows or batches.batch_size
    memory = in_memory(dataset) if isinstance(feed, MemoryFeed) else None
    if memory is not None and isinstance(feed, MemoryFeed):
        same = len(leaves(memory[0])) == len(leaves(feed.data)) and all(
            _same_memory(a, b) for a, b in zip(leaves(memory[0]), leaves(feed.data), strict=True)
        )
        return ValidPlan(memory[1], rows, len(dataset), in_arrays=True) if same else None
    return None if isinstance(feed, MemoryFeed) else ValidPlan(None, rows, len(dataset), False)


def content_of(feed: Feed, valid: Any) -> Any:
    """Return what has to be on the workers for a feed."""
    if isinstance(feed, ShardFeed):
        return None
    if isinstance(feed, MemoryFeed):
        return map_leaves(_freeze, feed.data)
    assert isinstance(feed, LoaderFeed)
    return [feed.dataset, valid]


def place(client: Any, feed: Feed, datasets: Any, *, again: bool = False) -> Any:
    """Return a Dask future of the data, which is on the cluster already after the first fit.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    feed : Feed
        With the data.
    datasets : (train, valid)
        What the feed was made from, and the validation set.
    again : bool
        Send the data even if they were sent before: the only worker that had them is gone.
    """
    content = content_of(feed, datasets[1])
    if not isinstance(feed, MemoryFeed):
        return client.scatter(Placed(content), hash=False)
    token = tokenize(content)
    with _lock:
        kept = _kept.setdefault(client, {})
        future = kept.get(token)
        if future is None or future.status != "finished" or again:
            future = client.scatter(Placed(content), hash=False)
            kept[token] = future
            for array in _users_arrays(datasets[0]):
                weakref.finalize(array, kept.pop, token, None)
    return future


def forget(client: Any) -> None:
    """Take all data of past fits off a client's cluster."""
    with _lock:
        _kept.pop(client, None)


def _users_arrays(dataset: Any) -> list[Any]:
    """Return the objects whose lives the data share: what the user has passed to ``fit``."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, SkorchDataset):
        return leaves(dataset.X)  # y is often a copy that estimators make on the way
    return [dataset]


def _same_memory(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.data_ptr() == b.data_ptr() and a.shape == b.shape
    return a is b or (
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.shares_memory(a, b)
    )


def _freeze(leaf: Any) -> Any:
    """NumPy's arrays travel without a copy; PyTorch shares their memory."""
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
