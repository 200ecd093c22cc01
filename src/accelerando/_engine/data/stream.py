"""Streams: rows of an ``IterableDataset``, read by one rank or by several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from accelerando._engine.data.buffer import CarriedStream, ChunkLoader, Collate, RowBuffer
from accelerando._engine.data.feed import (
    WHOLE,
    Batch,
    Rows,
    Shard,
    batch_rows,
    map_leaves,
    slice_rows,
)
from accelerando._engine.data.shards import (
    MODULUS,
    ShardReader,
    digest_of,
    interleave,
    set_epoch,
    sharding_of,
    stream_state,
)
from accelerando._engine.runtime.process import Draws
from accelerando.exceptions import ClusterError, StateError, UnsupportedError

Sum = Callable[..., list[float]]


class StreamFeed:
    """Rows of an ``IterableDataset``, in the order in which it yields them.

    The length is unknown until the first epoch ends. A rank reads its shard if the stream has a
    method ``shard(rank, size)`` (see :mod:`accelerando._engine.data.shards`), otherwise all rows,
    of which it keeps its share. A resumed epoch is read again up to its cursor and compared.

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
        # Whole batches are cut and joined; the loader calls the user's function with each of them.
        self.collate: Collate | None = (
            None if "batch_size" in options else options.get("collate_fn")
        )
        self.workers = int(options.get("num_workers") or 0)
        # Without a sharding, the user's worker_init_fn finds the user's data set.
        self.reader = ShardReader(dataset, self.workers) if sharding_of(dataset) else None
        self.checked = False  # whether the method ``shard`` has been tried on its first rows
        if self.reader is None and self.workers:
            options = stream_options(dataset, options)
        carried = CarriedStream(dataset) if options.get("multiprocessing_context") else dataset
        source = carried if self.reader is None else self.reader
        self._loader = ChunkLoader(source, options, loader=loader, chunk=chunk)

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> StreamEpoch:
        return StreamEpoch(self, seed, epoch, cursor, shard)

    def chunks(self, seed: int, epoch: int, shard: Shard) -> Iterator[Any]:
        """Open the stream for an epoch, and return what the loader delivers."""
        if self.reader is None:
            set_epoch(self.dataset, epoch)
        else:
            self.reader.move(shard, epoch, seed)
        draws = Draws(seed, epoch)  # a stream may shuffle, or change rows at random
        with draws():
            delivered = self._loader.chunks(seed, epoch)
        if not self.workers:
            return draws.during(delivered)
        if self.reader is None or self.workers < 2:
            return delivered
        return interleave(delivered, self.workers, items=self.collate is not None)

    def close(self) -> None:
        """End the worker processes."""
        self._loader.close()

    def share(self, rows: Rows, shard: Shard) -> Rows:
        return shard.of(rows, start=0)

    def gather(self, rows: Rows) -> Any:
        raise UnsupportedError(
            "The rows of an IterableDataset cannot be read by their numbers, so nothing can be "
            "measured on a sample of them. Use a Dataset with a length, or a policy that does not "
            "measure on the training set."
        )


def stream_options(dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Refuse worker processes that persist and would not hear of the next epoch."""
    if options.get("persistent_workers") and hasattr(dataset, "set_epoch"):
        raise UnsupportedError(
            "iterator_train__persistent_workers=True keeps copies of the stream that never hear of "
            "set_epoch. Leave it out, or give the stream a method shard(rank, size)."
        )
    return {"persistent_workers": False, **options}


class StreamEpoch:
    """One epoch of a stream on one rank; all ranks take the same batches.

    Parameters
    ----------
    feed : StreamFeed
        What to read.
    seed, epoch, cursor : int
        Of the run, which epoch, and how many of its rows were used before.
    shard : Shard
        This rank.
    """

    def __init__(self, feed: StreamFeed, seed: int, epoch: int, cursor: int, shard: Shard) -> None:
        self.feed, self.cursor, self.shard = feed, cursor, shard
        self.seed, self.number = seed, epoch
        self.items = feed.collate is not None
        # Of which rows this process reads: all of them, or its own.
        self.reads = shard if feed.reader is not None else WHOLE
        self.digest = 0  # of the rows before the cursor that this process has read
        self.start: Any = None  # the stream's own state when the epoch began
        self._total = 0  # the digest of what all ranks have read
        self._sum: Sum = lambda *numbers: list(numbers)
        self._buffer: RowBuffer | None = None
        self._spare: Any = None

    @property
    def mark(self) -> dict[str, Any]:
        """Expectation of a resumed epoch: the digest of the rows before the cursor."""
        kind = type(self.feed.dataset).__name__
        return {"rows": self.cursor, "digest": self._total, "start": self.start, "kind": kind}

    # -- opening ----------------------------------------------------------------------------------

    def join(self, total: Sum, mark: Mapping[str, Any]) -> None:
        """Open the stream together with the other ranks, and compare it with what was read before.

        Parameters
        ----------
        total : callable
            Sums numbers over the ranks.
        mark : mapping
            :attr:`mark` of the update before; empty at the start of a run.

        Raises
        ------
        ClusterError
            If the shards of the stream are not those of one order.
        StateError
            If the stream does not repeat the rows before the cursor.
        """
        self._sum, dataset = total, self.feed.dataset
        if mark.get("kind") == type(dataset).__name__:  # else: partial_fit with another stream
            self.start = mark.get("start")
        if self.start is None:
            self.start = stream_state(dataset)
        else:
            dataset.load_state_dict(copy.deepcopy(self.start))
        buffer = self._open()
        self._try_shards()
        place, left = self.reads.rank, count_of(self.reads, 0, self.cursor)
        for rows, taken in buffer.discard(left):
            places = range(place, place + rows * self.reads.size, self.reads.size)
            self.digest += digest_of(taken, places, items=self.items)
            place += rows * self.reads.size
        self._total = self._added_up(self.digest)
        known = mark.get("rows") == self.cursor and mark.get("digest") is not None
        if self.cursor and known and mark["digest"] != self._total:
            raise StateError(
                f"The stream does not repeat the {self.cursor} rows of epoch {self.number + 1} "
                "that were trained on before, so that training cannot continue inside the epoch. "
                "Let the order depend on a seed and on set_epoch(epoch) only; or begin a new run "
                "with fit."
            )

    def _open(self) -> RowBuffer:
        chunks = self.feed.chunks(self.seed, self.number, self.shard)
        self._buffer = RowBuffer(chunks, self.feed.collate)
        return self._buffer

    def _try_shards(self) -> None:
        """Compare the first rows of the shards with those of the whole stream, once."""
        feed = self.feed
        if feed.reader is None or feed.checked or self.shard.size == 1:
            return
        feed.checked = True
        if sum(self._sum(float(not feed.reader.follows_protocol(self.shard)))):
            raise ClusterError(
                f"{type(feed.dataset).__name__}.shard(rank, size) must yield the rows rank, "
                "rank + size, ... of shard(0, 1), the same in every call, and the first rows are "
                "others. Number the rows of the whole stream, and seed what shuffles them."
            )

    def _added_up(self, digest: int) -> int:
        """Return the digest of what all ranks have read."""
        total = self._sum(float(digest % MODULUS))[0] if self.reads.size > 1 else digest
        return int(total) % MODULUS

    # -- batches ----------------------------------------------------------------------------------

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        if self._buffer is None:
            self.join(self._sum, {})
        buffer = self._buffer
        assert buffer is not None
        # Reading further than needed would change when the user's generator advances.
        ahead = rows + min_rows if min_rows > 1 else rows
        wanted = count_of(self.reads, self.cursor, ahead)
        buffer.fill(wanted)
        here = min(buffer.n_rows, wanted)
        if self.reads.size > 1:
            size = self._agree_on_shards(here, rows, min_rows, ahead)
        else:
            size = self._agree_on_rows(here, rows, min_rows)
        if size == 0:
            self._end()
            return None
        mine = count_of(self.reads, self.cursor, size)
        data = self._release(mine, size)
        self.cursor += size
        return data

    def _agree_on_rows(self, here: int, rows: int, min_rows: int) -> int:
        """Return the size of the next batch if every rank reads all rows; compare them."""
        size = batch_rows(here, rows, min_rows, self.feed.drop_last)
        self.digest = self._total = self._digest_with(size)
        if self.shard.size > 1:
            sizes, digests = self._told(float(here), float(self.digest))
            if len(set(sizes)) > 1 or len(set(digests)) > 1:
                raise ClusterError(
                    f"The stream yields different rows on different ranks: those up to row "
                    f"{self.cursor + size} of epoch {self.number + 1} are not the same. Let their "
                    "order depend on a seed and on set_epoch(epoch) only, or give the stream a "
                    "method shard(rank, size). The update was not made."
                )
        return size

    def _agree_on_shards(self, here: int, rows: int, min_rows: int, ahead: int) -> int:
        """Return the size of the next batch if every rank reads its shard."""
        # Unless the stream ends now, the batch has as many rows as requested.
        digest = self._digest_with(rows)
        present, digests = self._told(float(here), float(digest))
        left = int(sum(present))
        if [
            count_of(Shard(n, self.shard.size), self.cursor, left) for n in range(len(present))
        ] != [int(rows) for rows in present]:
            ends = ", ".join(str(int(rows)) for rows in present)
            raise ClusterError(
                f"{type(self.feed.dataset).__name__}.shard(rank, size) must yield the rows rank, "
                f"rank + size, ... of one stream, and after row {self.cursor} the shards of the "
                f"{self.shard.size} ranks have {ends} of the next {ahead} rows. The update was not "
                "made."
            )
        size = batch_rows(left, rows, min_rows, self.feed.drop_last)
        if size == rows:
            self.digest, self._total = digest, int(sum(digests)) % MODULUS
        else:  # the last batch
            self.digest = self._digest_with(size)
            self._total = self._added_up(self.digest)
        return size

    def _digest_with(self, size: int) -> int:
        """Return the digest of the rows before the cursor and of this process's next ones."""
        assert self._buffer is not None
        mine = min(count_of(self.reads, self.cursor, size), self._buffer.n_rows)
        if not mine:
            return self.digest % MODULUS
        stride = self.reads.size
        first = self.cursor + (self.reads.rank - self.cursor) % stride
        places = range(first, first + mine * stride, stride)
        return (self.digest + digest_of(self._buffer.first(mine), places, items=self.items)) % (
            MODULUS
        )

    def _told(self, *numbers: float) -> list[list[float]]:
        """Return for each number what each rank said."""
        rank, size = self.shard
        said = [0.0] * (len(numbers) * size)
        for place, number in enumerate(numbers):
            said[place * size + rank] = number
        sums = self._sum(*said)
        return [sums[place * size : (place + 1) * size] for place in range(len(numbers))]

    def _release(self, mine: int, size: int) -> Batch:
        """Return this rank's rows of the next batch; one that does not count if it has none."""
        buffer = self._buffer
        assert buffer is not None
        place = self.seed, self.number, self.cursor
        if self.reads.size > 1:
            if mine:
                taken = buffer.cut(mine)
                self._spare = taken[:1] if self.items else slice_rows(taken, 0, 1)
            else:
                taken = self._spare_row()
            return Batch(buffer.collated(taken, *place), size, None, mine)
        taken = buffer.cut(size)
        if self.shard.size == 1:
            return Batch(buffer.collated(taken, *place), size, None, size)
        index = self.shard.of(np.arange(size), self.cursor)
        shown = index if len(index) else np.zeros(1, dtype=np.int64)
        if self.items:
            mine_only = buffer.collated([taken[i] for i in shown], *place)
            return Batch(mine_only, size, None, len(index))
        chosen = torch.from_numpy(shown)
        mine_only = map_leaves(lambda leaf: leaf.index_select(0, chosen), taken)
        return Batch(mine_only, size, None, len(index))

    def _spare_row(self) -> Any:
        """Return a row for a rank without one in this batch: collective operations need it."""
        if self._spare is None:
            assert self.feed.reader is not None
            with Draws()():
                first = [next(self.feed.reader.rows(0, 1))]
            self._spare = first if self.items else default_collate(first)
        return self._spare

    def _end(self) -> None:
        """Note where the stream is; refuse one that has nothing to say."""
        buffer = self._buffer
        assert buffer is not None
        if self.cursor == 0 and not self._sum(float(buffer.n_rows))[0]:
            again = "" if self.number == 0 else (
                " A stream is read once in each epoch: __iter__ must return a new iterator each "
                "time."
            )  # fmt: skip
            raise ValueError(
                f"There are no training examples: the stream yields nothing in epoch "
                f"{self.number + 1}.{again}"
            )
        self.start = stream_state(self.feed.dataset)


def count_of(shard: Shard, start: int, rows: int) -> int:
    """Return how many of `rows` rows from position `start` on belong to a shard.

    Examples
    --------
    >>> [count_of(Shard(rank, 3), start=4, rows=5) for rank in range(3)]
    [1, 2, 2]
    """
    return max(0, -(-(rows - (shard.rank - start) % shard.size) // shard.size))
