"""Data sets with a length, read through PyTorch's ``DataLoader`` and its worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from accelerando._engine.data.feed import (
    WHOLE,
    Batch,
    Batches,
    Feed,
    Order,
    Rows,
    Shard,
    batch_rows,
    choose_feed,
    epoch_order,
)
from accelerando._engine.data.stream import (
    Collate,
    RowBuffer,
    StreamFeed,
    make_loader,
    seed_loader,
)
from accelerando.exceptions import UnsupportedError

__all__ = ["LoaderFeed", "choose_feed", "choose_loader"]


def choose_loader(
    dataset: Any,
    options: dict[str, Any],
    sampler: Any,
    *,
    order: Order,
    drop_last: bool,
    loader: type[Any],
    chunk: int,
) -> Feed:
    """Return the feed that reads a data set through a loader; see :func:`choose_feed`."""
    if not isinstance(dataset, IterableDataset):
        return LoaderFeed(
            dataset, options, order=order, drop_last=drop_last, loader=loader, chunk=chunk
        )
    if sampler is not None:
        raise UnsupportedError(
            "iterator_train__sampler cannot order the rows of an IterableDataset, which yields "
            "them in its own order. Leave it out, or pass a Dataset with a length."
        )
    return StreamFeed(dataset, options, drop_last=drop_last, loader=loader, chunk=chunk)


class LoaderFeed:
    """Rows of a data set with a length, delivered in chunks by a ``DataLoader``.

    The chunks keep their order and are cut and joined here, so the batch size can change at any
    time, even if worker processes have fetched rows ahead.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        The training set.
    options : dict
        Further arguments of the loader, such as ``num_workers``.
    order : callable
        Returns the order of an epoch from (seed, epoch, number of rows).
    drop_last : bool
        Leave out a last batch with fewer rows than requested.
    loader : class
        ``DataLoader`` or a subclass.
    chunk : int
        Rows that a worker process delivers at a time.
    """

    def __init__(
        self,
        dataset: Any,
        options: dict[str, Any],
        *,
        order: Order = epoch_order,
        drop_last: bool = False,
        loader: type[Any] = DataLoader,
        chunk: int = 64,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.drop_last = drop_last
        self.n_rows = len(dataset)
        self.n_examples: int | None = self.n_rows
        self.collate: Collate | None = options.get("collate_fn")
        self._sampler = _GivenOrder()
        self._generator = torch.Generator()
        self._loader = make_loader(
            dataset, options, self._generator, loader=loader, chunk=chunk, sampler=self._sampler
        )

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        seed_loader(self._generator, seed, epoch)
        order = self.order(seed, epoch, self.n_rows)
        # Only this rank's rows: worker processes fetch nothing that others compute.
        self._sampler.rows = shard.of(order[cursor:], cursor)
        return _LoaderEpoch(self, RowBuffer(iter(self._loader), self.collate), order, cursor, shard)

    def share(self, rows: Rows, shard: Shard) -> Rows:
        return shard.of(rows, start=0)

    def gather(self, rows: Rows) -> Any:
        items = [self.dataset[int(row)] for row in rows]
        return (self.collate or default_collate)(items)


class _GivenOrder:
    """A sampler that yields the rows that were last assigned to it."""

    rows: Rows = np.arange(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)


class _LoaderEpoch:
    def __init__(
        self, feed: LoaderFeed, buffer: RowBuffer, order: Rows, cursor: int, shard: Shard
    ) -> None:
        self.feed = feed
        self.buffer = buffer
        self.order = order
        self.cursor = cursor
        self.shard = shard

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        start = self.cursor
        size = batch_rows(len(self.order) - start, rows, min_rows, self.feed.drop_last)
        if size == 0:
            return None
        self.cursor += size
        batch = self.order[start : self.cursor]
        mine = self.shard.of(batch, start)
        if not len(mine):
            return Batch(self.feed.gather(batch[:1]), size, batch[:1], 0)
        self.buffer.fill(len(mine))
        return Batch(self.buffer.release(len(mine)), size, mine, len(mine))
