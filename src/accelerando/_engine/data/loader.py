"""Data sets with a length, read through PyTorch's ``DataLoader`` and its worker processes."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from accelerando._engine.data.buffer import (
    Carried,
    ChunkLoader,
    Collate,
    RowBuffer,
)
from accelerando._engine.data.feed import (
    WHOLE,
    Batch,
    Batches,
    Feed,
    Order,
    OrderedBatches,
    Rows,
    Shard,
    choose_feed,
    epoch_order,
)
from accelerando._engine.data.shards import checksum, sharding_of
from accelerando._engine.data.stream import StreamFeed
from accelerando._engine.runtime.process import Draws, seed_generators
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
    shuffle: bool = False,
) -> Feed:
    """Return the feed that reads a data set through a loader; see :func:`choose_feed`."""
    if "batch_size" in options and (
        not isinstance(dataset, IterableDataset) or sharding_of(dataset) is not None
    ):
        raise UnsupportedError(
            "iterator_train__batch_size=None is for an IterableDataset that yields whole batches "
            "and has no method shard(rank, size). Let the data set return single rows and leave "
            "the parameter out; batch_size counts rows."
        )
    if not isinstance(dataset, IterableDataset):
        return LoaderFeed(
            dataset, options, order=order, drop_last=drop_last, loader=loader, chunk=chunk
        )
    if sampler is not None:
        raise UnsupportedError(
            "iterator_train__sampler cannot order the rows of an IterableDataset, which yields "
            "them in its own order. Leave it out, or pass a Dataset with a length."
        )
    if shuffle:
        raise UnsupportedError(
            "iterator_train__shuffle=True cannot change the order of an IterableDataset, which "
            "yields rows in its own. Leave it out, and shuffle in the stream by set_epoch(epoch)."
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
        self._items = SeededItems(dataset, int(options.get("num_workers") or 0))
        self._loader = ChunkLoader(
            self._items, options, loader=loader, chunk=chunk, sampler=self._sampler
        )

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        order = self.order(seed, epoch, self.n_rows)
        # Only this rank's rows: worker processes fetch nothing that others compute.
        self._sampler.rows = shard.of(order[cursor:], cursor)
        self._items.move(seed, epoch)
        chunks = self._loader.chunks(seed, epoch)
        buffer = RowBuffer(chunks, self.collate)
        return _LoaderEpoch(self, buffer, order, cursor, shard, (seed, epoch))

    def close(self) -> None:
        """End the worker processes."""
        self._loader.close()

    def share(self, rows: Rows, shard: Shard) -> Rows:
        return shard.of(rows, start=0)

    def gather(self, rows: Rows) -> Any:
        return (self.collate or default_collate)(self.read(rows.tolist()))

    def read(self, rows: list[int]) -> list[Any]:
        """Return the items of some rows."""
        return self._items.__getitems__(rows)


class SeededItems(Dataset[Any]):
    """Items of a data set that draw the same random numbers wherever they are read.

    Random augmentation usually draws from the global generators of PyTorch, NumPy and Python. They
    are seeded by (seed, epoch, row) before each item, so that neither the number of ranks nor the
    number of worker processes changes it, and restored afterwards: dropout draws from them, too.

    A data set with ``__getitems__`` reads rows together, unless that draws random numbers: which
    rows are read together depends on the number of ranks.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        The training set.
    workers : int
        Worker processes of the loader.
    """

    def __init__(self, dataset: Any, workers: int) -> None:
        self.dataset = dataset
        self.where = torch.zeros(2, dtype=torch.int64)  # seed and epoch, also for processes that
        if workers:  # persist
            self.where.share_memory_()  # type: ignore[no-untyped-call]
        self.reads_lists = _has_getitems(dataset) and self._lists_equal_items()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "dataset": Carried(self.dataset), "where": self.where, "reads_lists": self.reads_lists
        }  # fmt: skip

    def _lists_equal_items(self) -> bool:
        """Return True if rows that are read together are those that are read one by one."""
        rows = [0, len(self.dataset) - 1]
        try:
            self.reads_lists = False
            single = [checksum(item) for item in self.__getitems__(rows)]
            self.reads_lists = True
            return [checksum(item) for item in self.__getitems__(rows)] == single
        except Exception:
            return True  # training raises it, too, and explains it

    def move(self, seed: int, epoch: int) -> None:
        """Let items be those of another epoch."""
        self.where.copy_(torch.tensor([seed, epoch]))

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        seed, epoch = self.where.tolist()
        if self.reads_lists:
            with Draws(seed, epoch, rows[0])():
                found: list[Any] = self.dataset.__getitems__(rows)
            return found
        items = []
        with Draws(seed, epoch)():
            for row in rows:
                seed_generators(seed, epoch, row)
                items.append(self.dataset[row])
        return items


def _has_getitems(dataset: Any) -> bool:
    """Return True if a data set has ``__getitems__``; a Subset has it for the one inside."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return hasattr(dataset, "__getitems__")


_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def own_generator(value: Any, name: str = "dataset", depth: int = 4) -> str | None:
    """Return where a data set, or a transform in it, keeps a random generator; None if nowhere.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> own_generator(SimpleNamespace(transform=[SimpleNamespace(rng=random.Random(0))]))
    'dataset.transform[0].rng'
    """
    if isinstance(value, _GENERATORS):
        return name
    if depth == 0:
        return None
    parts: list[tuple[str, Any]] = []
    if isinstance(value, list | tuple) and len(value) <= 100:
        parts = [(f"{name}[{place}]", one) for place, one in enumerate(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = [(f"{name}.{key}", one) for key, one in vars(value).items()]
    found = (own_generator(one, where, depth - 1) for where, one in parts)
    return next((where for where in found if where is not None), None)


class _GivenOrder:
    """A sampler that yields the rows that were last assigned to it."""

    rows: Rows = np.arange(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)


class _LoaderEpoch(OrderedBatches):
    def __init__(
        self,
        feed: LoaderFeed,
        buffer: RowBuffer,
        order: Rows,
        cursor: int,
        shard: Shard,
        place: tuple[int, int],
    ) -> None:
        super().__init__(order, cursor, drop_last=feed.drop_last)
        self.feed, self.buffer, self.shard = feed, buffer, shard
        self.place = place  # seed and epoch

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        start, batch = self.cursor, self.next_rows(rows, min_rows)
        size = len(batch)
        if not size:
            return None
        mine = self.shard.of(batch, start)
        if not len(mine):
            return Batch(self.feed.gather(batch[:1]), size, batch[:1], 0)
        self.buffer.fill(len(mine))
        return Batch(self.buffer.release(len(mine), *self.place, start), size, mine, len(mine))


def check_repeatable(feed: LoaderFeed) -> None:
    """Refuse data sets whose rows depend on which process has read which rows before."""
    if (name := own_generator(feed.dataset)) is not None:
        raise UnsupportedError(
            f"{name} is a random generator that every rank would continue in its own "
            "way. Draw from torch.rand, numpy.random or random instead, which are seeded by row, "
            "or train in this process (client=None)."
        )
    if not is_repeatable(feed) or _keeps_draws(feed):
        raise UnsupportedError(
            "A row of the data set is another one when it is read again, with the same random "
            "numbers: it depends on how often rows have been read, on a clock, or on a generator "
            "that only the data set knows, or it keeps what it drew when it was read first; and "
            "every rank has its own data set. Let a row depend on its "
            "number and on what __getitem__ draws from torch.rand, numpy.random or random; or "
            "train in this process (client=None)."
        )


def _sizes(value: Any, depth: int = 3) -> list[int]:
    """Return the sizes of the containers in which a data set may keep rows that it has read."""
    if depth == 0:
        return []
    if isinstance(value, dict | list | set):
        return [sum(one is not None for one in value)]
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    return [size for one in vars(value).values() for size in _sizes(one, depth - 1)]


def _keeps_draws(feed: LoaderFeed) -> bool:
    """Return True if a row keeps the random numbers of its first reading, by whichever rank."""
    if feed.n_rows < 4:
        return False
    some, sizes = min(16, feed.n_rows // 4), _sizes(feed.dataset)
    rows = np.linspace(1, feed.n_rows - 3, some).astype(int)
    try:
        feed.read(rows.tolist())
        if _sizes(feed.dataset) == sizes:
            return False
        first, second = (SeededItems(copy.deepcopy(feed.dataset), 0) for _ in range(2))
        for row in (rows + 1).tolist():  # nobody has read some of them before
            first.move(0, 0)
            second.move(1, 0)
            drawn, other = checksum(first[row]), checksum(second[row])
            first.move(1, 0)
            if drawn != other and checksum(first[row]) == drawn:
                return True
    except Exception:
        return False  # what cannot be copied, or read, is somebody else's error
    return False


def is_repeatable(feed: LoaderFeed) -> bool:
    """Return False if two rows are others when they are read again.

    Errors are left to training, which explains them.
    """
    rows = [0, feed.n_rows - 1]
    try:
        first, second = ([checksum(one) for one in feed.read(rows)] for _ in range(2))
    except Exception:
        return True
    return first == second
