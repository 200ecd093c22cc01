"""Shards of streams: how a rank reads its share of an ``IterableDataset``, and what it has read.

A stream that can be sharded has a method ``shard(rank, size)``, which returns rows ``rank``,
``rank + size``, ... of ``shard(0, 1)``. With this stride the batches of a run do not depend on the
number of ranks. A stream without it is read as a whole by every rank, which keeps its share.

A *digest* says which rows were read: the sum of the CRC-32 of all rows, each of which depends on
the row's position, too. Sums of ranks can be added up, so that a digest does not depend on the
number of ranks either.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from accelerando._engine.data.buffer import Carried
from accelerando._engine.data.feed import Shard, concatenate, leaves, map_leaves
from accelerando._engine.runtime.process import Draws, seed_generators

MODULUS = 2**32
Sharding = Callable[[int, int], Iterable[Any]]


# -- sharding -------------------------------------------------------------------------------------


def sharding_of(dataset: Any, size: int = 1) -> Sharding | None:
    """Return the function that divides a stream among `size` readers; None if it has none.

    Parameters
    ----------
    dataset : torch.utils.data.IterableDataset
        With a method ``shard(rank, size)``, or of Hugging Face's library ``datasets``.
    size : int
        Number of readers.

    Examples
    --------
    >>> class Numbers(IterableDataset):
    ...     def shard(self, rank, size):
    ...         return range(rank, 10, size)
    ...     def __iter__(self):
    ...         return iter(self.shard(0, 1))
    >>> list(sharding_of(Numbers())(1, 3))
    [1, 4, 7]
    """
    shard = getattr(dataset, "shard", None)
    if callable(shard) and _accepts(shard, "rank", "size"):
        return lambda rank, size: shard(rank=rank, size=size)
    if type(dataset).__module__.partition(".")[0] == "datasets" and hasattr(dataset, "num_shards"):
        return _hugging_face(dataset, size)
    return None


def _accepts(function: Callable[..., Any], *names: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return all(name in parameters for name in names)


def _hugging_face(dataset: Any, size: int) -> Sharding | None:
    """Let ``split_dataset_by_node`` give each reader every `size`-th example.

    By default it gives whole files to readers if their number divides the number of files. The
    order of the rows would then depend on the number of readers.
    """
    split = importlib.import_module("datasets.distributed").split_dataset_by_node
    if _accepts(split, "strategy"):
        return lambda rank, size: split(dataset, rank, size, strategy="examples")
    if size == 1:
        return lambda rank, size: dataset
    if dataset.num_shards % size:
        return lambda rank, size: split(dataset, rank, size)
    return None


class ShardReader(IterableDataset[Any]):
    """The rows of one rank, divided among the worker processes of its loader.

    Parameters
    ----------
    dataset : torch.utils.data.IterableDataset
        With a sharding; see :func:`sharding_of`.
    workers : int
        Worker processes of the loader.
    """

    def __init__(self, dataset: Any, workers: int) -> None:
        self.dataset = dataset
        # Rank, number of ranks, epoch and seed, visible to worker processes that persist.
        self.where = torch.tensor([0, 1, 0, 0])
        if workers:
            self.where.share_memory_()  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": Carried(self.dataset), "where": self.where}

    def move(self, shard: Shard, epoch: int, seed: int = 0) -> None:
        """Read another shard, or another epoch, from the next ``iter`` on."""
        self.where.copy_(torch.tensor([*shard, epoch, seed]))

    def __iter__(self) -> Iterator[Any]:
        rank, size, epoch, _ = self.where.tolist()
        set_epoch(self.dataset, epoch)
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self.rows(rank + size * number, size * workers)

    def rows(self, rank: int, size: int) -> Iterator[Any]:
        """Yield the rows of one shard; what a row draws depends on its number in the stream."""
        epoch, seed = self.where[2:].tolist()
        seed_generators(seed, epoch)
        sharding = sharding_of(self.dataset, size)
        found: Iterator[Any]
        if sharding is None:
            found = islice(iter(self.dataset), rank, None, size)
        else:
            found = iter(sharding(rank, size))
        for number in count(rank, size):
            seed_generators(seed, epoch, number)
            try:
                row = next(found)
            except StopIteration:
                return
            yield row

    def follows_protocol(self, shard: Shard) -> bool:
        """Return whether the first rows of a shard are where the protocol says.

        A method that gives whole files to ranks, or draws from a generator without a seed, would
        make the result depend on the number of ranks.
        """
        set_epoch(self.dataset, int(self.where[2]))
        last = shard.rank + shard.size + 1
        with Draws()():
            mine = list(islice(self.rows(*shard), 2))
            whole = list(islice(self.rows(0, 1), last))[shard.rank :: shard.size]
        return [checksum(row) for row in mine] == [checksum(row) for row in whole]


def set_epoch(dataset: Any, epoch: int) -> None:
    """Tell a stream which epoch begins, if it wants to know: the order may depend on it."""
    if callable(getattr(dataset, "set_epoch", None)):
        dataset.set_epoch(epoch)


def interleave(chunks: Iterator[Any], workers: int, *, items: bool) -> Iterator[Any]:
    """Join the chunks of worker processes that read every `workers`-th row, in order of the rows.

    Parameters
    ----------
    chunks : iterator
        One chunk of each worker in turn.
    workers : int
        Worker processes.
    items : bool
        Whether a chunk is a list of items; otherwise it consists of tensors.

    Examples
    --------
    >>> chunks = [[0, 2, 4], [1, 3, 5], [6, 8], [7]]
    >>> list(interleave(iter(chunks), 2, items=True))
    [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    """
    while group := list(islice(chunks, workers)):
        lengths = [len(chunk) if items else len(leaves(chunk)[0]) for chunk in group]
        places = [(row, worker) for worker, rows in enumerate(lengths) for row in range(rows)]
        order = sorted(range(len(places)), key=places.__getitem__)
        if items:
            joined = [item for chunk in group for item in chunk]
            yield [joined[place] for place in order]
        else:
            index = torch.tensor(order)
            yield map_leaves(_taking(index), concatenate(group))


def _taking(index: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda leaf: leaf.index_select(0, index)


# -- the state of a stream ------------------------------------------------------------------------


def stream_state(dataset: Any) -> Any:
    """Return the state of a stream that has one (torchdata) and no ``set_epoch``, else None.

    With ``set_epoch`` the rows depend on the epoch, and no state is needed. A state that is not
    plain values cannot be kept; the stream is then read again and compared.
    """
    if hasattr(dataset, "set_epoch") or not hasattr(dataset, "load_state_dict"):
        return None
    state = dataset.state_dict()
    try:
        same = json.loads(json.dumps(state)) == state
    except (TypeError, ValueError):
        return None
    return state if same else None


# -- what was read --------------------------------------------------------------------------------


def digest_of(data: Any, places: Sequence[int], *, items: bool) -> int:
    """Return the digest of some rows.

    Parameters
    ----------
    data : tree of tensors, or list of items
        The rows.
    places : sequence of int
        Their positions in the stream.
    items : bool
        Whether `data` is a list of items.

    Examples
    --------
    >>> rows = torch.arange(6.0).reshape(3, 2)
    >>> whole = digest_of([rows], range(3), items=False)
    >>> parts = digest_of([rows[:1]], [0], items=False) + digest_of([rows[1:]], [1, 2], items=False)
    >>> whole == parts % MODULUS
    True
    """
    starts = [zlib.crc32(place.to_bytes(8, "little")) for place in places]
    if items:
        return sum(checksum(row, c) for row, c in zip(data, starts, strict=True)) % MODULUS
    total = 0
    columns = [_bytes_by_row(leaf) for leaf in leaves(data)]
    for number, crc in enumerate(starts):
        for head, column in columns:
            crc = zlib.crc32(column[number], zlib.crc32(head, crc))
        total += crc
    return total % MODULUS


def _bytes_by_row(leaf: torch.Tensor) -> tuple[bytes, Any]:
    rows = leaf.detach().cpu().contiguous().reshape(len(leaf), -1)
    head = f"{leaf.dtype} {tuple(leaf.shape[1:])}".encode()
    return head, rows.view(torch.uint8).numpy() if rows.numel() else [b""] * len(rows)


def checksum(value: Any, crc: int = 0) -> int:
    """Return the CRC-32 of a value: numbers, texts, arrays and tensors, and what consists of them.

    Examples
    --------
    >>> checksum({"x": np.ones(2), "y": "a"}) == checksum({"x": np.ones(2), "y": "a"})
    True
    >>> checksum((1, "2")) == checksum(("1", 2))
    False
    """
    head = type(value).__name__.encode()
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous().reshape(1, -1)
        head = f"{value.dtype} {tuple(value.shape)}".encode()
        body: Any = array.view(torch.uint8).numpy() if array.numel() else b""
        return zlib.crc32(body, zlib.crc32(head, crc))
    if isinstance(value, np.ndarray) and value.dtype != object:
        head = f"{value.dtype} {value.shape}".encode()
        return zlib.crc32(value.tobytes(), zlib.crc32(head, crc))
    parts: Iterable[Any]
    if isinstance(value, Mapping):
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, Set):
        parts = sorted(checksum(part) for part in value)
    elif isinstance(value, list | tuple):
        parts = value
    else:
        return zlib.crc32(_plain_bytes(value), zlib.crc32(head, crc))
    crc = zlib.crc32(head, crc)
    for part in parts:
        crc = checksum(part, crc)
    return zlib.crc32(b".", crc)


def _plain_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if value is None or isinstance(value, str | int | float | complex | np.generic):
        return repr(value).encode()
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:  # what cannot be pickled is known by its type only
        return b""
