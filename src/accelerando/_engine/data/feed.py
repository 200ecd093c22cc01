"""Feeds: a feed cuts an epoch of a training set into batches; their sizes are requested one by one.

A policy may change the batch size between any two updates, so a feed does not know the sizes in
advance. This module defines the protocol of feeds, the order of an epoch, the rule for its last
batch, helpers for batches of nested arrays, and the feed for arrays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from accelerando._engine.data.sampler_order import SamplerOrder
from accelerando.exceptions import UnsupportedError

Rows = npt.NDArray[np.int64]
Order = Callable[[int, int, int], Rows]


class Batch(NamedTuple):
    """The rows of one update.

    Attributes
    ----------
    data : (X, y)
        This rank's rows of the global batch. A rank whose share is empty gets one row
        nevertheless, because collective operations need every rank.
    size : int
        Number of rows of the global batch, over all ranks.
    rows : array or None
        Indices of the rows in the training set; None for a stream.
    held : int
        Number of rows that count for this rank; 0 if its share is empty.
    """

    data: Any
    size: int
    rows: Rows | None
    held: int


class Shard(NamedTuple):
    """The rows of each batch that belong to one rank: every `size`-th row of the epoch's order.

    The stride counts along the epoch, not along the batch. So a loader can prefetch a rank's rows
    before the size of the next batch is known, and a run resumed at any row assigns the same rows.

    Examples
    --------
    >>> import numpy as np
    >>> Shard(rank=1, size=3).of(np.arange(10, 18), start=4).tolist()
    [10, 13, 16]
    """

    rank: int = 0
    size: int = 1

    def of(self, rows: Rows, start: int) -> Rows:
        """Return this rank's share of `rows`, whose first has position `start` in the epoch."""
        return rows if self.size == 1 else rows[(self.rank - start) % self.size :: self.size]


WHOLE = Shard()


class Batches(Protocol):
    """The remaining batches of one epoch."""

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        """Return the next batch of `rows` rows, or None at the end of the epoch.

        :func:`batch_rows` decides the size of the last batch.
        """


class Feed(Protocol):
    """A training set as the loop sees it.

    Attributes
    ----------
    n_examples : int or None
        Number of rows; None for a stream, whose length is unknown.
    drop_last : bool
        Whether a last batch with fewer rows than requested is left out.
    """

    n_examples: int | None
    drop_last: bool

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        """Return one rank's batches of an epoch, starting at position `cursor` of its order."""

    def gather(self, rows: Rows) -> Any:
        """Return the given rows of the training set as one batch ``(X, y)``."""

    def share(self, rows: Rows, shard: Shard) -> Rows:
        """Return one rank's share of the given rows of the training set."""


def batch_rows(left: int, wanted: int, min_rows: int, drop_last: bool) -> int:
    """Return the number of rows of the next batch; 0 ends the epoch.

    Parameters
    ----------
    left : int
        Rows of the epoch that are not used yet.
    wanted : int
        Requested batch size.
    min_rows : int
        A remainder below this number of rows joins this batch (BatchNorm needs two rows).
    drop_last : bool
        Leave out a last batch with fewer than `wanted` rows.

    Examples
    --------
    >>> [batch_rows(left, 4, 2, False) for left in (9, 5, 3, 0)]
    [4, 5, 3, 0]
    """
    if 0 < left - wanted < min_rows:
        wanted = left
    if left <= 0 or (drop_last and left < wanted):
        return 0
    return min(left, wanted)


def count_batches(left: int, wanted: int, min_rows: int, drop_last: bool) -> int:
    """Return the number of batches that :func:`batch_rows` makes of `left` rows.

    As long as ``left >= wanted + min_rows``, a batch takes exactly `wanted` rows. Whatever is left
    then is one batch, unless it is short and dropped.

    Examples
    --------
    >>> [count_batches(left, 4, 2, False) for left in (9, 10)]
    [2, 3]
    """
    if left <= 0:
        return 0
    full = max(0, (left - wanted - max(1, min_rows)) // wanted + 1)
    dropped = drop_last and left - full * wanted < wanted
    return full if dropped else full + 1


def epoch_order(seed: int, epoch: int, n: int) -> Rows:
    """Return the shuffle of `n` rows in one epoch.

    The order depends on (`seed`, `epoch`) only: not on batch sizes, on the number of processes or
    on earlier epochs. So a run can resume anywhere in an epoch.

    Examples
    --------
    >>> epoch_order(seed=0, epoch=0, n=4).tolist()
    [2, 0, 1, 3]
    """
    return np.random.default_rng([seed, epoch]).permutation(n)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to every leaf of nested dicts, lists and tuples; keep the structure."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, PackedSequence):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, value) for value in tree)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of `tree` in order."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def only_tensors(tree: Any) -> bool:
    """Return True if every leaf is a tensor with at least one dimension."""
    return all(isinstance(leaf, torch.Tensor) and leaf.dim() > 0 for leaf in leaves(tree))


def slice_rows(tree: Any, start: int, stop: int) -> Any:
    """Return rows `start` to `stop` of every leaf as views, without a copy."""
    return map_leaves(lambda leaf: leaf[start:stop], tree)


def count_rows(tree: Any) -> int:
    """Return the number of rows of the first leaf; all leaves have equally many."""
    return len(leaves(tree)[0])


def concatenate(trees: Sequence[Any]) -> Any:
    """Concatenate trees of tensors with the same structure along their rows."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: concatenate([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(concatenate(parts) for parts in zip(*trees, strict=True)))
    if isinstance(first, list | tuple):
        return type(first)(concatenate(parts) for parts in zip(*trees, strict=True))
    return torch.cat(list(trees))


def unpack(batch_data: Any) -> tuple[Any, Any]:
    """Return X and y of a batch; raise ``ValueError`` unless it has exactly these two values.

    A single tensor with exactly two rows cannot be recognized: it would be split into X and y.
    """
    try:
        X, y = batch_data
    except ValueError:
        single = not isinstance(batch_data, tuple | list) or len(batch_data) < 2
        count = "1 value" if single else f"{len(batch_data)} values"
        raise ValueError(
            f"The items of the data set have {count}. Dataset.__getitem__ must return exactly "
            "2 values, X and y; for several inputs let X be a dict, list or tuple."
        ) from None
    return X, y


class ArrayFeed:
    """Rows of arrays in memory (or memory-mapped), gathered a batch at a time.

    Parameters
    ----------
    data : [X, y]
        Nested tensors, NumPy arrays or sparse matrices in CSR format.
    subset : array or None
        Indices of the rows that belong to the training set; None for all.
    order : callable
        Returns the order of an epoch from (seed, epoch, number of rows).
    drop_last : bool
        Leave out a last batch with fewer rows than requested.

    Examples
    --------
    >>> feed = ArrayFeed([torch.arange(5.0), torch.arange(5)], None)
    >>> batches = feed.epoch(seed=0, epoch=0, cursor=0)
    >>> batches.take(3).size, batches.take(3).size, batches.take(3)
    (3, 2, None)
    """

    def __init__(
        self, data: Any, subset: Rows | None, *, order: Order = epoch_order, drop_last: bool = False
    ) -> None:
        self.data, self.subset = data, subset
        self.order, self.drop_last = order, drop_last
        # Fast path for the usual case, X and y as CPU tensors: no recursion over a tree.
        self.plain = len(data) == 2 and all(
            isinstance(part, torch.Tensor) and part.is_cpu for part in data
        )
        # shape and not len, which sparse matrices do not have.
        self.n_rows = int(leaves(data)[0].shape[0]) if subset is None else len(subset)
        self.n_examples: int | None = self.n_rows

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        return _ArrayEpoch(self, self.order(seed, epoch, self.n_rows), cursor, shard)

    def share(self, rows: Rows, shard: Shard) -> Rows:
        return shard.of(rows, start=0)

    def gather(self, rows: Rows) -> Any:
        rows = rows if self.subset is None else self.subset[rows]
        index = torch.from_numpy(rows)
        if self.plain:
            X, y = self.data
            return [X.index_select(0, index), y.index_select(0, index)]
        return map_leaves(lambda leaf: _select(leaf, rows, index), self.data)


class OrderedBatches:
    """The rest of an epoch whose rows are in a known order."""

    def __init__(self, order: Rows, cursor: int, *, drop_last: bool) -> None:
        self.order, self.cursor, self.drop_last = order, cursor, drop_last

    def next_rows(self, rows: int, min_rows: int) -> Rows:
        """Return the rows of the next global batch; none at the end of the epoch."""
        start = self.cursor
        self.cursor += batch_rows(len(self.order) - start, rows, min_rows, self.drop_last)
        return self.order[start : self.cursor]


class _ArrayEpoch(OrderedBatches):
    def __init__(self, feed: ArrayFeed, order: Rows, cursor: int, shard: Shard) -> None:
        super().__init__(order, cursor, drop_last=feed.drop_last)
        self.feed, self.shard = feed, shard

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        start, batch = self.cursor, self.next_rows(rows, min_rows)
        if not len(batch):
            return None
        mine = self.shard.of(batch, start)
        shown = mine if len(mine) else batch[:1]
        return Batch(self.feed.gather(shown), len(batch), shown, len(mine))


def _select(leaf: Any, rows: Rows, index: torch.Tensor) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.index_select(0, index if leaf.is_cpu else index.to(leaf.device))
    if sparse.issparse(leaf):
        return torch.from_numpy(leaf[rows].toarray())
    return torch.from_numpy(leaf[rows])  # memory-mapped or read-only: NumPy copies these rows only


class ArrayBatches:
    """Batches of arrays in the order of their rows, for validation and prediction.

    Parameters
    ----------
    arrays : (data, subset)
        See :class:`ArrayFeed`.
    rows : int
        Batch size.
    """

    def __init__(self, arrays: tuple[Any, Rows | None], rows: int) -> None:
        self.feed = ArrayFeed(*arrays)
        self.rows = rows

    def __len__(self) -> int:
        return math.ceil(self.feed.n_rows / self.rows)

    def __iter__(self) -> Iterator[Any]:
        indices = np.arange(self.feed.n_rows)
        for start in range(0, len(indices), self.rows):
            yield self.feed.gather(indices[start : start + self.rows])


def choose_feed(
    arrays: tuple[Any, Rows | None] | None,
    dataset: Any,
    options: dict[str, Any],
    *,
    loader: type[Any] = DataLoader,
    chunk: int = 64,
) -> Feed:
    """Return the feed for a data set.

    Parameters
    ----------
    arrays : (data, subset) or None
        The arrays behind `dataset` and its rows among theirs, if it consists of plain arrays.
    dataset : torch.utils.data.Dataset
        The training set, after the validation rows have been split off.
    options : dict
        The arguments of the loader; ``batch_size`` only if it is None. Those that only a loader
        understands (``num_workers``, ``collate_fn``) cause arrays to be read through one, too.
    loader : class
        ``DataLoader``, or a subclass, through which all data are read.
    chunk : int
        Rows that a worker process delivers at a time.

    Examples
    --------
    >>> data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    >>> arrays = list(data.tensors), None
    >>> [type(choose_feed(a, data, {})).__name__ for a in (arrays, None)]
    ['ArrayFeed', 'LoaderFeed']
    """
    shuffle = bool(options.get("shuffle", True))
    drop_last = bool(options.get("drop_last", False))
    rest = {key: value for key, value in options.items() if key not in ("shuffle", "drop_last")}
    if rest.get("batch_sampler") is not None:
        raise UnsupportedError(
            "iterator_train__batch_sampler decides the batches itself, so that no batch-size "
            "policy can. Pass iterator_train__sampler for your own order, and batch_size."
        )
    sampler = rest.pop("sampler", None)
    order = _order_of(shuffle, sampler)
    plain = not any(rest.values()) and "batch_size" not in rest
    if arrays is not None and loader is DataLoader and plain:
        return ArrayFeed(*arrays, order=order, drop_last=drop_last)
    from accelerando._engine.data.loader import choose_loader  # a fit on arrays needs none

    how: Any = {"order": order, "drop_last": drop_last, "loader": loader, "chunk": chunk}
    return choose_loader(dataset, rest, sampler, shuffle=bool(options.get("shuffle")), **how)


def _order_of(shuffle: bool, sampler: Any) -> Order:
    if sampler is not None:
        return SamplerOrder(sampler)
    return epoch_order if shuffle else (lambda seed, epoch, n: np.arange(n))
