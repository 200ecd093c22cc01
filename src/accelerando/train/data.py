"""From what the user passes to batches of any size: feeds.

A feed cuts an epoch into batches whose sizes are asked for one at a time, so that a policy may
change them between any two updates. There are two: rows in memory are gathered a whole batch at a
time, everything else comes through PyTorch's ``DataLoader`` and its worker processes in small
chunks that are put together here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse
from skorch.dataset import Dataset as SkorchDataset
from skorch.utils import is_pandas_ndframe
from torch.utils.data import DataLoader, Subset, TensorDataset

from accelerando.exceptions import UnsupportedError
from accelerando.train.feed import WHOLE, Batch, Feed, Order, Part, Stream
from accelerando.train.loader import LoaderFeed
from accelerando.train.order import Rows, epoch_order
from accelerando.train.tree import (
    leaves,
    map_leaves,
)


def make_feed(
    dataset: Any, options: dict[str, Any], *, loader: type[Any] = DataLoader, chunk: int = 64
) -> Feed:
    """Choose the feed for a data set.

    Parameters
    ----------
    dataset : torch Dataset
        What skorch made of the user's data, before or after its train split.
    options : dict
        The ``iterator_train__x`` parameters without ``batch_size``.
    loader : class
        ``iterator_train``.
    chunk : int
        Rows that a DataLoader worker brings at a time.
    """
    shuffle = bool(options.get("shuffle", True))
    drop_last = bool(options.get("drop_last", False))
    rest = {key: value for key, value in options.items() if key not in ("shuffle", "drop_last")}
    _refuse_batching(rest)
    sampler = rest.pop("sampler", None)
    order = _order_of(shuffle, sampler)
    if loader is DataLoader and not any(rest.values()):
        memory = in_memory(dataset)
        if memory is not None:
            return MemoryFeed(*memory, order=order, drop_last=drop_last)
    return LoaderFeed(dataset, rest, order=order, drop_last=drop_last, loader=loader, chunk=chunk)


def _refuse_batching(options: dict[str, Any]) -> None:
    if options.get("batch_sampler") is not None:
        raise UnsupportedError(
            "iterator_train__batch_sampler decides the batches itself, so that no batch-size "
            "policy can. Pass iterator_train__sampler for your own order, and batch_size."
        )


def _order_of(shuffle: bool, sampler: Any) -> Order:
    if sampler is not None:
        return lambda seed, epoch, n: np.fromiter(sampler, dtype=np.int64)
    return epoch_order if shuffle else (lambda seed, epoch, n: np.arange(n))


class MemoryFeed:
    """Rows of arrays, gathered a whole batch at a time."""

    def __init__(
        self, data: Any, subset: Rows | None, *, order: Order = epoch_order, drop_last: bool = False
    ) -> None:
        self.data = data
        self.subset = subset
        self.order = order
        self.drop_last = drop_last
        # The usual case, X and y tensors in this machine's memory, takes no walk over a tree.
        self.plain = len(data) == 2 and all(
            isinstance(part, torch.Tensor) and part.is_cpu for part in data
        )
        self.n_rows = count_array_rows(data) if subset is None else len(subset)
        self.n_examples: int | None = self.n_rows

    def epoch(self, seed: int, epoch: int, cursor: int, part: Part = WHOLE) -> Stream:
        return _MemoryStream(self, self.order(seed, epoch, self.n_rows), cursor, part)

    def share(self, rows: Rows, part: Part) -> Rows:
        mine: Rows = part.of(rows, start=0)
        return mine

    def gather(self, rows: Rows) -> Any:
        rows = rows if self.subset is None else self.subset[rows]
        index = torch.from_numpy(rows)
        if self.plain:
            X, y = self.data
            return [X.index_select(0, index), y.index_select(0, index)]
        return map_leaves(lambda leaf: _take(leaf, rows, index), self.data)


class _MemoryStream:
    def __init__(self, feed: MemoryFeed, order: Rows, cursor: int, part: Part) -> None:
        self.feed = feed
        self.order = order
        self.cursor = cursor
        self.part = part

    def take(self, size: int, fewest: int = 1) -> Batch | None:
        left = len(self.order) - self.cursor
        if 0 < left - size < fewest:
            size = left
        rows = self.order[self.cursor : self.cursor + size]
        if len(rows) == 0 or (self.feed.drop_last and len(rows) < size):
            return None
        mine = self.part.of(rows, self.cursor)
        self.cursor += len(rows)
        shown = mine if len(mine) else rows[:1]
        return Batch(self.feed.gather(shown), len(rows), shown, len(mine))


def _take(leaf: Any, rows: Rows, index: torch.Tensor) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.index_select(0, index if leaf.is_cpu else index.to(leaf.device))
    if sparse.issparse(leaf):
        return torch.from_numpy(leaf[rows].toarray())
    return torch.from_numpy(leaf[rows])  # memory-mapped or read-only: NumPy copies these rows only


def in_memory(dataset: Any) -> tuple[Any, Rows | None] | None:
    """Return the arrays and the chosen rows behind a data set, or None if it is none of ours.

    A data set with its own way to make an item keeps it: only those of skorch and PyTorch whose
    items are known to be plain rows are looked through.
    """
    subset: Rows | None = None
    while type(dataset) is Subset:
        indices = np.asarray(dataset.indices, dtype=np.int64)
        subset = indices if subset is None else indices[subset]
        dataset = dataset.dataset
    if type(dataset) is TensorDataset:
        return (list(dataset.tensors), subset) if len(dataset.tensors) == 2 else None
    if type(dataset) is not SkorchDataset:
        return None
    X = dataset.X
    if is_pandas_ndframe(X):
        # As skorch does: one keyword argument of forward per column, each of shape (rows, 1).
        X = {name: X[name].to_numpy().reshape(-1, 1) for name in X}
    y = dataset.y
    if is_pandas_ndframe(y):
        y = y.to_numpy()
    if y is None:
        y = torch.zeros(len(dataset), 1)
    data = [_array_leaves(X), _array_leaves(y)]
    if any(leaf is None for leaf in leaves(data)):
        return None
    return data, subset


def _array_leaves(tree: Any) -> Any:
    """Turn leaves into tensors or indexable arrays; None for a leaf that is neither."""

    def convert(leaf: Any) -> Any:
        if is_pandas_ndframe(leaf):
            leaf = leaf.to_numpy()
        if isinstance(leaf, torch.Tensor):
            return leaf if leaf.layout == torch.strided and leaf.dim() > 0 else None
        if sparse.issparse(leaf):
            return leaf.tocsr()
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0 or leaf.dtype.kind not in "biufc":
            return None
        if isinstance(leaf, np.memmap) or not leaf.flags.writeable or not leaf.dtype.isnative:
            return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))
        return torch.from_numpy(np.ascontiguousarray(leaf))

    return map_leaves(convert, tree)


def count_array_rows(data: Any) -> int:
    """Return the rows of the arrays behind a memory feed; sparse matrices have no len."""
    return int(leaves(data)[0].shape[0])


class MemoryBatches:
    """Batches in the given order, for validation and prediction."""

    def __init__(self, memory: tuple[Any, Rows | None], rows: int) -> None:
        self.feed = MemoryFeed(*memory)
        self.rows = rows

    def __len__(self) -> int:
        return math.ceil(self.feed.n_rows / self.rows)

    def __iter__(self) -> Iterator[Any]:
        everything = np.arange(self.feed.n_rows)
        for start in range(0, len(everything), self.rows):
            yield self.feed.gather(everything[start : start + self.rows])
