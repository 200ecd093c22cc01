"""Streams: rows of an ``IterableDataset``, read in chunks and joined to batches of any size.

PyTorch's ``DataLoader`` and its worker processes deliver chunks of a fixed number of rows.
:class:`RowBuffer` joins and cuts them; :class:`~accelerando._engine.data.loader.LoaderFeed` uses it
for data sets with a length, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from accelerando._engine.data.feed import (
    WHOLE,
    Batch,
    Batches,
    Rows,
    Shard,
    batch_rows,
    concatenate,
    count_rows,
    map_leaves,
    only_tensors,
    slice_rows,
)
from accelerando.exceptions import UnsupportedError

Collate = Callable[[list[Any]], Any]


def make_loader(
    dataset: Any,
    options: dict[str, Any],
    generator: torch.Generator,
    *,
    loader: type[Any],
    chunk: int,
    **settings: Any,
) -> Any:
    """Return a ``DataLoader`` that delivers chunks of `chunk` rows.

    A collate function of the user must see each batch as a whole. So with one the loader delivers
    lists of items, and :class:`RowBuffer` calls the function.
    """
    settings = {**options, **settings, "batch_size": chunk, "generator": generator}
    if options.get("collate_fn") is not None:
        settings["collate_fn"] = list
    return loader(dataset, **settings)


def seed_loader(generator: torch.Generator, seed: int, epoch: int) -> None:
    """Seed the generator from which a loader draws the seeds of its worker processes.

    The loader must not use the global generator: dropout draws from it, so ``num_workers`` would
    change the result.
    """
    generator.manual_seed(seed * 1_000_003 + epoch)


class RowBuffer:
    """Rows that arrive in chunks and leave in batches, in the same order.

    Parameters
    ----------
    chunks : iterator
        Chunks as the loader delivers them.
    collate : callable or None
        The user's function that makes a batch of a list of items.

    Attributes
    ----------
    n_rows : int
        Number of rows that have been read and not been released.
    """

    def __init__(self, chunks: Iterator[Any], collate: Collate | None) -> None:
        self.collate = collate
        self.n_rows = 0
        self._chunks = chunks
        self._held: list[Any] = []

    def fill(self, rows: int) -> None:
        """Read chunks until `rows` rows are here or no chunk is left."""
        while self.n_rows < rows and (chunk := next(self._chunks, None)) is not None:
            self._hold(chunk)

    def release(self, rows: int) -> Any:
        """Remove the first `rows` rows, and return them as one batch."""
        taken = self._cut(rows)
        return taken if self.collate is None else self.collate(taken)

    def skip(self, rows: int) -> None:
        """Read `rows` rows and forget them; the collate function does not see them."""
        while rows > 0:
            self.fill(min(rows, 1024))
            count = min(rows, 1024, self.n_rows)
            if count == 0:
                return
            self._cut(count)
            rows -= count

    def _hold(self, chunk: Any) -> None:
        if self.collate is None and not only_tensors(chunk):
            raise UnsupportedError(
                "The Dataset's items become batches that are not tensors with one row per example, "
                "so they cannot be joined to a larger batch. Pass iterator_train__collate_fn."
            )
        self._held.append(chunk)
        self.n_rows += count_rows(chunk) if self.collate is None else len(chunk)

    def _cut(self, rows: int) -> Any:
        self.n_rows -= rows
        if self.collate is not None:
            items = [item for chunk in self._held for item in chunk]
            self._held = [items[rows:]] if self.n_rows else []
            return items[:rows]
        joined = concatenate(self._held)
        self._held = [slice_rows(joined, rows, rows + self.n_rows)] if self.n_rows else []
        return slice_rows(joined, 0, rows)


class StreamFeed:
    """Rows of an ``IterableDataset``, in the order in which it yields them.

    The length is unknown until the first epoch ends. Every rank reads all rows and keeps its
    share, so all ranks must read the same rows. A resumed epoch is read again up to its cursor.

    Parameters
    ----------
    dataset : torch.utils.data.IterableDataset
        The stream.
    options : dict
        Further arguments of the loader, such as ``num_workers``.
    drop_last : bool
        Leave out a last batch with fewer rows than requested.
    loader : class
        ``DataLoader`` or a subclass.
    chunk : int
        Rows that a worker process delivers at a time.
    """

    n_examples: int | None = None

    def __init__(
        self,
        dataset: Any,
        options: dict[str, Any],
        *,
        drop_last: bool = False,
        loader: type[Any] = DataLoader,
        chunk: int = 64,
    ) -> None:
        self.dataset = dataset
        self.drop_last = drop_last
        self.collate: Collate | None = options.get("collate_fn")
        self._generator = torch.Generator()
        self._loader = make_loader(dataset, options, self._generator, loader=loader, chunk=chunk)

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        if shard.size > 1 and self.collate is not None:
            raise UnsupportedError(
                "A stream with its own collate_fn cannot be divided among ranks. Collate inside "
                "the IterableDataset, or train in this process (client=None)."
            )
        seed_loader(self._generator, seed, epoch)
        buffer = RowBuffer(iter(self._loader), self.collate)
        buffer.skip(cursor)
        return _StreamEpoch(buffer, cursor, shard, self.drop_last)

    def share(self, rows: Rows, shard: Shard) -> Rows:
        return shard.of(rows, start=0)

    def gather(self, rows: Rows) -> Any:
        raise UnsupportedError(
            "The rows of an IterableDataset cannot be read by their numbers, so nothing can be "
            "measured on a sample of them. Use a Dataset with a length, or a policy that does not "
            "measure on the training set."
        )


class _StreamEpoch:
    def __init__(self, buffer: RowBuffer, cursor: int, shard: Shard, drop_last: bool) -> None:
        self.buffer = buffer
        self.cursor = cursor
        self.shard = shard
        self.drop_last = drop_last

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        # Reading further than needed would change when the user's generator advances.
        self.buffer.fill(rows + min_rows if min_rows > 1 else rows)
        size = batch_rows(self.buffer.n_rows, rows, min_rows, self.drop_last)
        if size == 0:
            return None
        start, self.cursor = self.cursor, self.cursor + size
        data = self.buffer.release(size)
        if self.shard.size == 1:
            return Batch(data, size, None, size)
        index = torch.from_numpy(self.shard.of(np.arange(size), start))
        held = len(index)
        index = index if held else torch.zeros(1, dtype=torch.int64)
        mine = map_leaves(lambda leaf: leaf.index_select(0, index), data)
        return Batch(mine, size, None, held)
