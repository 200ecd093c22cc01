"""Rows of any data set, through PyTorch's ``DataLoader`` and its worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from accelerando.exceptions import UnsupportedError
from accelerando.train.feed import WHOLE, Batch, Order, Part, Stream
from accelerando.train.order import Rows, epoch_order
from accelerando.train.tree import concatenate, count_rows, map_leaves, only_tensors, slice_rows


class LoaderFeed:
    """Rows of any data set, brought in chunks by a ``DataLoader`` and its workers.

    The chunks keep their order and are cut and joined here, so a batch may have any size at any
    moment, whatever the workers have fetched ahead.
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
        self.streaming = isinstance(dataset, IterableDataset)
        self.n_examples: int | None = None if self.streaming else len(dataset)
        # A user's own collate function must see the batch as a whole, so its chunks stay lists.
        self.collate = options.get("collate_fn")
        self._sampler = _GivenOrder()
        self._generator = torch.Generator()
        settings = {**options, "batch_size": chunk, "generator": self._generator}
        if self.collate is not None:
            settings["collate_fn"] = list
        if not self.streaming:
            settings["sampler"] = self._sampler
        self._loader = loader(dataset, **settings)

    def epoch(self, seed: int, epoch: int, cursor: int, part: Part = WHOLE) -> Stream:
        # The loader draws its workers' seeds from here and not from the global generator, which
        # belongs to the model's own randomness (dropout).
        self._generator.manual_seed(seed * 1_000_003 + epoch)
        if self.streaming:
            stream = _LoaderStream(self, iter(self._loader))
            stream.skip(cursor)
            return stream if part.size == 1 else _StreamPart(stream, part, cursor)
        assert self.n_examples is not None
        order = self.order(seed, epoch, self.n_examples)
        self._sampler.rows = part.of(order[cursor:], cursor)
        return _LoaderStream(self, iter(self._loader), order, cursor, part)

    def share(self, rows: Rows, part: Part) -> Rows:
        mine: Rows = part.of(rows, start=0)
        return mine

    def gather(self, rows: Rows) -> Any:
        items = [self.dataset[int(row)] for row in rows]
        return (self.collate or default_collate)(items)


class _GivenOrder:
    """A sampler that yields the rows it was last given."""

    rows: Rows = np.arange(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)


class _LoaderStream:
    def __init__(
        self,
        feed: LoaderFeed,
        chunks: Iterator[Any],
        order: Rows | None = None,
        cursor: int = 0,
        part: Part = WHOLE,
    ) -> None:
        self.feed = feed
        self.chunks = chunks
        self.order = order
        self.cursor = cursor
        self.part = part
        self.held: list[Any] = []
        self.n_held = 0

    def skip(self, count: int) -> None:
        while count > 0 and (batch := self.take(min(count, 1024))) is not None:
            count -= batch.size

    def take(self, size: int, fewest: int = 1) -> Batch | None:
        if self.order is None:
            return self._take_of_stream(size, fewest)
        left = len(self.order) - self.cursor
        if 0 < left - size < fewest:
            size = left
        count = min(size, left)
        if count <= 0 or (self.feed.drop_last and count < size):
            return None
        start, self.cursor = self.cursor, self.cursor + count
        rows = self.order[start : self.cursor]
        mine = self.part.of(rows, start)
        if not len(mine):
            return Batch(self.feed.gather(rows[:1]), count, rows[:1], 0)
        self._fill(len(mine))
        return Batch(self._release(len(mine)), count, mine, len(mine))

    def _take_of_stream(self, size: int, fewest: int) -> Batch | None:
        self._fill(size + fewest if fewest > 1 else size)
        if 0 < self.n_held - size < fewest:  # and no more will come
            size = self.n_held
        count = min(size, self.n_held)
        if count == 0 or (self.feed.drop_last and count < size):
            return None
        return Batch(self._release(count), count, None, count)

    def _fill(self, enough: int) -> None:
        while self.n_held < enough and (chunk := next(self.chunks, None)) is not None:
            self._hold(chunk)

    def _hold(self, chunk: Any) -> None:
        if self.feed.collate is None and not only_tensors(chunk):
            raise UnsupportedError(
                "The Dataset's items become batches that are not tensors with one row per example, "
                "so they cannot be joined to a larger batch. Pass iterator_train__collate_fn."
            )
        self.held.append(chunk)
        self.n_held += len(chunk) if self.feed.collate is not None else count_rows(chunk)

    def _release(self, count: int) -> Any:
        self.n_held -= count
        if self.feed.collate is not None:
            items = [item for chunk in self.held for item in chunk]
            self.held = [items[count:]] if self.n_held else []
            return self.feed.collate(items[:count])
        joined = concatenate(self.held)
        self.held = [slice_rows(joined, count, count + self.n_held)] if self.n_held else []
        return slice_rows(joined, 0, count)


class _StreamPart:
    """A rank's rows of a stream: every rank reads all of it, and keeps its own."""

    def __init__(self, stream: _LoaderStream, part: Part, cursor: int) -> None:
        if stream.feed.collate is not None:
            raise UnsupportedError(
                "A stream with its own collate_fn cannot be divided among ranks. Collate inside "
                "the IterableDataset, or train in this process (client=None)."
            )
        self.stream = stream
        self.part = part
        self.cursor = cursor

    def take(self, size: int, fewest: int = 1) -> Batch | None:
        batch = self.stream.take(size, fewest)
        if batch is None:
            return None
        start, self.cursor = self.cursor, self.cursor + batch.size
        index = torch.from_numpy(self.part.of(np.arange(batch.size), start))
        held = len(index)
        index = index if held else torch.zeros(1, dtype=torch.int64)
        mine = map_leaves(lambda leaf: leaf.index_select(0, index), batch.data)
        return Batch(mine, batch.size, None, held)
