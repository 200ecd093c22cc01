"""Dask arrays that stay in their chunks: each rank trains on those it holds.

Every batch is a piece of one global order of the rows, as with any other data; of each batch a rank
computes the rows that are in its chunks. The order is drawn so that every stretch of it has rows of
all chunks in proportion, which keeps the ranks' shares nearly equal. It depends on the seed, the
epoch and the lengths of the chunks, not on who holds them: the number of ranks does not change the
result, and neither does a chunk that moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dask
import numpy as np
import torch
from dask import is_dask_collection
from distributed import wait
from torch.utils.data import Dataset

from accelerando.exceptions import UnsupportedError
from accelerando.train.feed import WHOLE, Batch, Part, Stream
from accelerando.train.order import Rows


def chunked_order(seed: int, epoch: int, lengths: Sequence[int]) -> Rows:
    """Return the order of an epoch over rows that lie in chunks.

    Rows are shuffled within each chunk; row j of a chunk with n rows then gets the place
    (j + u) / n with a random u per chunk, and all rows are sorted by their places.

    Examples
    --------
    >>> sorted(chunked_order(0, 0, [3, 2]).tolist())
    [0, 1, 2, 3, 4]
    """
    rng = np.random.default_rng([seed, epoch, 2])
    rows, places = [], []
    start = 0
    for n in lengths:
        rows.append(start + rng.permutation(n))
        places.append((np.arange(n) + rng.random()) / max(1, n))
        start += n
    return np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")]


class Chunks(Dataset[Any]):
    """Rows on the cluster, known here by the keys and lengths of their chunks."""

    def __init__(self, futures: list[Any], lengths: list[int], classes: Any) -> None:
        self.futures = futures
        self.lengths = lengths
        self.classes = classes

    def __len__(self) -> int:
        return sum(self.lengths)

    def __getitem__(self, row: int) -> Any:
        raise UnsupportedError(
            "The rows of a Dask array are on the workers and are never gathered in this process. "
            "Score on arrays that are here, or pass train_split=None."
        )


def on_cluster(X: Any) -> bool:
    """Tell whether the data are a Dask collection."""
    return bool(is_dask_collection(X))


def take_chunks(net: Any, X: Any, y: Any) -> Chunks:
    """Let the cluster compute the chunks of `X` and `y`, row by row together."""
    if net.client is None or net.data != "shard":
        raise UnsupportedError(
            "X is a Dask array. To train on its chunks where they are pass client= and "
            'data="shard"; to train on all of it pass X.compute() and y.compute().'
        )
    if net.train_split is not None and not hasattr(net.train_split, "func"):
        raise UnsupportedError(
            "A Dask array cannot be split here into training and validation rows. Pass "
            "train_split=None, or skorch.helper.predefined_split(Dataset(X_valid, y_valid))."
        )
    if not on_cluster(y) or not hasattr(X, "chunks") or not hasattr(y, "chunks"):
        raise UnsupportedError(
            f"With Dask, X and y are both dask.array arrays; got {type(X).__name__} and "
            f"{type(y).__name__}. dask.dataframe has to_dask_array(lengths=True)."
        )
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} rows and y has {len(y)}.")
    X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    y = y.rechunk({0: X.chunks[0], **dict.fromkeys(range(1, y.ndim), -1)})
    pairs = zip(X.to_delayed().ravel(), y.to_delayed().ravel(), strict=True)
    futures = net.client.compute([dask.delayed(_pair)(*pair) for pair in pairs])
    wait(futures)
    lengths = net.client.gather(net.client.map(_length, futures, pure=False))
    classes = None
    if y.dtype.kind in "iub":
        found = net.client.gather(net.client.map(_classes, futures, pure=False))
        classes = np.unique(np.concatenate(found))
    return Chunks(futures, lengths, classes)


def _pair(X: Any, y: Any) -> list[Any]:
    return [np.ascontiguousarray(X), np.ascontiguousarray(y)]


def _length(pair: list[Any]) -> int:
    return len(pair[0])


def _classes(pair: list[Any]) -> Any:
    return np.unique(pair[1])


def share_out(
    lengths: Sequence[int], holders: Mapping[int, str], places: Sequence[str]
) -> dict[str, list[int]]:
    """Give every chunk to one place: to its holder if that takes part, else to who has least.

    Nobody is left without rows as long as there are enough chunks that have some.

    Examples
    --------
    >>> share_out([10, 10, 10], {0: "a", 1: "a"}, ["a", "b"])
    {'a': [0, 1], 'b': [2]}
    >>> share_out([10, 10, 10, 10], {0: "a", 1: "a", 2: "b", 3: "b"}, ["a", "b", "c"])
    {'a': [0], 'b': [2, 3], 'c': [1]}
    """
    given: dict[str, list[int]] = {place: [] for place in places}
    # Holders keep what they have up to an equal share, so that nobody's share grows for ever.
    fair = sum(lengths) / len(places) + max(lengths, default=0)
    homeless = []
    for number in range(len(lengths)):
        place = holders.get(number, "")
        held = sum(lengths[n] for n in given.get(place, ()))
        if place in given and held + lengths[number] <= fair:
            given[place].append(number)
        else:
            homeless.append(number)
    for number in homeless:
        least = min(places, key=lambda place: sum(lengths[n] for n in given[place]))
        given[least].append(number)
    # Dask may have put all chunks on few workers, but a rank without a row cannot take part.
    rows = {p: [n for n in numbers if lengths[n]] for p, numbers in given.items()}
    for place in places:
        richest = max(places, key=lambda p: len(rows[p]))
        if not rows[place] and len(rows[richest]) > 1:
            number = rows[richest].pop()
            rows[place].append(number)
            given[richest].remove(number)
            given[place].append(number)
    return given


class ShardFeed:
    """A training set of which this process holds some chunks."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.starts = np.cumsum([0, *self.lengths])
        self.n_examples: int | None = int(self.starts[-1])
        self.chunks: dict[int, list[Any]] = {}
        self._local: list[torch.Tensor] = []
        self._index: Rows = np.full(self.n_examples, -1)

    def hold(self, chunks: Mapping[int, list[Any]]) -> None:
        """Hold these chunks and no others."""
        self.chunks = dict(sorted(chunks.items()))
        self._index = np.full(self.n_examples or 0, -1)
        start = 0
        for number in self.chunks:
            rows = slice(self.starts[number], self.starts[number + 1])
            self._index[rows] = np.arange(start, start + self.lengths[number])
            start += self.lengths[number]
        parts = list(zip(*self.chunks.values(), strict=True))
        self._local = [torch.from_numpy(np.concatenate(part)) for part in parts]

    def share(self, rows: Rows, part: Part) -> Rows:
        """Return those of the rows that are here."""
        return rows[self._index[rows] >= 0]

    def epoch(self, seed: int, epoch: int, cursor: int, part: Part = WHOLE) -> Stream:
        return _ShardStream(self, chunked_order(seed, epoch, self.lengths), cursor)

    def gather(self, rows: Rows) -> Any:
        index = torch.from_numpy(self._index[rows])
        return [leaf.index_select(0, index) for leaf in self._local]

    def any_row(self) -> Rows:
        """Return one row that is here, for a rank whose share is empty."""
        return np.flatnonzero(self._index >= 0)[:1]


class _ShardStream:
    def __init__(self, feed: ShardFeed, order: Rows, cursor: int) -> None:
        self.feed = feed
        self.order = order
        self.cursor = cursor

    def take(self, size: int, fewest: int = 1) -> Batch | None:
        left = len(self.order) - self.cursor
        if 0 < left - size < fewest:
            size = left
        rows = self.order[self.cursor : self.cursor + size]
        if not len(rows):
            return None
        self.cursor += len(rows)
        mine = self.feed.share(rows, WHOLE)
        shown = mine if len(mine) else self.feed.any_row()
        return Batch(self.feed.gather(shown), len(rows), shown, len(mine))


# Chunks that Dask has brought to this worker and a rank on it has not taken yet.
_deposits: dict[str, dict[int, list[Any]]] = {}


def deposit(name: str, numbers: list[int], *chunks: list[Any]) -> None:
    """Leave chunks for a rank on this worker; a task, so that Dask moves or recomputes them."""
    _deposits[name] = dict(zip(numbers, chunks, strict=True))


def withdraw(name: str) -> dict[int, list[Any]] | None:
    """Take the chunks that were left under a name; None if they have not come yet."""
    return _deposits.pop(name, None)
