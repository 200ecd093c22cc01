"""Chunks: a training set that lies in pieces on several machines; each rank trains on some of them.

Every batch is a piece of one global order of the rows, as with any other data. Of each batch a rank
computes the rows in its chunks. The order is drawn so that every section of it has rows of all
chunks in proportion to their lengths, which keeps the ranks' shares nearly equal. The order depends
on the seed, the epoch and the lengths of the chunks, not on their holders. So neither the number of
ranks nor a chunk that moves changes the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from accelerando._engine.data.feed import WHOLE, Batch, Batches, OrderedBatches, Rows, Shard


def chunked_order(seed: int, epoch: int, lengths: Sequence[int]) -> Rows:
    """Return the order of an epoch over rows that lie in chunks.

    Rows are shuffled within each chunk. Row j of a chunk with n rows then gets the key
    (j + u) / n with a random u per chunk, and all rows are sorted by their keys.

    Examples
    --------
    >>> sorted(chunked_order(0, 0, [3, 2]).tolist())
    [0, 1, 2, 3, 4]
    """
    # The third number separates these draws from those of epoch_order and sample_rows.
    rng = np.random.default_rng([seed, epoch, 2])
    rows, keys = [], []
    start = 0
    for n in lengths:
        rows.append(start + rng.permutation(n))
        keys.append((np.arange(n) + rng.random()) / max(1, n))
        start += n
    return np.concatenate(rows)[np.argsort(np.concatenate(keys), kind="stable")]


def share_out(
    lengths: Sequence[int], holders: Mapping[int, str], workers: Sequence[str]
) -> dict[str, list[int]]:
    """Assign every chunk to one worker: its holder if possible, else the one with fewest rows.

    A holder keeps its chunks up to an equal share of the rows. As long as there are enough chunks
    with rows, no worker is left without rows.

    Parameters
    ----------
    lengths : sequence of int
        Number of rows of each chunk.
    holders : mapping
        The worker that has a chunk in its memory, by the chunk's number.
    workers : sequence of str
        The workers that train.

    Examples
    --------
    >>> share_out([10, 10, 10], {0: "a", 1: "a"}, ["a", "b"])
    {'a': [0, 1], 'b': [2]}
    >>> share_out([10, 10, 10, 10], {0: "a", 1: "a", 2: "b", 3: "b"}, ["a", "b", "c"])
    {'a': [0], 'b': [2, 3], 'c': [1]}
    """
    assigned: dict[str, list[int]] = {worker: [] for worker in workers}

    def rows_of(worker: str) -> int:
        return sum(lengths[number] for number in assigned.get(worker, ()))

    # Without a limit, the share of a worker that receives the chunks of lost ones only grows.
    fair = sum(lengths) / len(workers) + max(lengths, default=0)
    unassigned = []
    for number, length in enumerate(lengths):
        worker = holders.get(number, "")
        if worker in assigned and rows_of(worker) + length <= fair:
            assigned[worker].append(number)
        else:
            unassigned.append(number)
    for number in unassigned:
        assigned[min(workers, key=rows_of)].append(number)
    _fill_empty(assigned, lengths)
    return assigned


def _fill_empty(assigned: dict[str, list[int]], lengths: Sequence[int]) -> None:
    """Give each worker without rows a chunk of the worker that has most chunks with rows.

    Dask may have computed all chunks on few workers, but a rank without a row cannot take part.
    """
    with_rows = {w: [n for n in numbers if lengths[n]] for w, numbers in assigned.items()}
    for worker, numbers in assigned.items():
        richest = max(with_rows, key=lambda w: len(with_rows[w]))
        if not with_rows[worker] and len(with_rows[richest]) > 1:
            number = with_rows[richest].pop()
            with_rows[worker].append(number)
            assigned[richest].remove(number)
            numbers.append(number)


class ChunkFeed:
    """A training set of which this process holds some chunks.

    Parameters
    ----------
    lengths : sequence of int
        Number of rows of each chunk of the training set.
    drop_last : bool
        Leave out a last batch with fewer rows than requested.

    Attributes
    ----------
    chunks : dict
        The chunks ``[X, y]`` that are here, by their numbers; empty before :meth:`hold`.

    Examples
    --------
    >>> feed = ChunkFeed([2, 3])
    >>> feed.hold({1: [np.array([1.0, 2.0, 3.0]), np.array([0, 1, 2])]})
    >>> batch = feed.epoch(seed=0, epoch=0, cursor=0).take(5)
    >>> batch.size, batch.held
    (5, 3)
    """

    def __init__(self, lengths: Sequence[int], *, drop_last: bool = False) -> None:
        self.lengths = list(lengths)
        self.drop_last = drop_last
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

    def share(self, rows: Rows, shard: Shard) -> Rows:
        """Return those of the rows that are here; the chunks decide this, not the shard."""
        return rows[self._index[rows] >= 0]

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        return _ChunkEpoch(self, chunked_order(seed, epoch, self.lengths), cursor)

    def gather(self, rows: Rows) -> Any:
        index = torch.from_numpy(self._index[rows])
        return [leaf.index_select(0, index) for leaf in self._local]

    def any_row(self) -> Rows:
        """Return one row that is here, for a rank whose share of a batch is empty."""
        return np.flatnonzero(self._index >= 0)[:1]


class _ChunkEpoch(OrderedBatches):
    def __init__(self, feed: ChunkFeed, order: Rows, cursor: int) -> None:
        super().__init__(order, cursor, drop_last=feed.drop_last)
        self.feed = feed

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        batch = self.next_rows(rows, min_rows)
        if not len(batch):
            return None
        mine = self.feed.share(batch, WHOLE)
        shown = mine if len(mine) else self.feed.any_row()
        return Batch(self.feed.gather(shown), len(batch), shown, len(mine))
