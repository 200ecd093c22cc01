"""Rows on their way from a ``DataLoader`` to batches of any size.

PyTorch's ``DataLoader`` and its worker processes deliver chunks of a fixed number of rows.
:class:`RowBuffer` joins and cuts them, for streams and for data sets with a length.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from accelerando._engine._torch import end_workers, start_workers
from accelerando._engine.data.feed import concatenate, count_rows, only_tensors, slice_rows
from accelerando._engine.runtime.process import Draws
from accelerando.exceptions import UnsupportedError

Collate = Callable[[list[Any]], Any]


class Carried:
    """Something on its way to a worker process, where it arrives as what it was.

    Worker processes that are not forked get their arguments from pickle, which does not accept what
    is defined in a script or in a notebook.

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(pickle.dumps(Carried(lambda: 3)))()
    3
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def __call__(self, *args: Any) -> Any:
        return self.content(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return cloudpickle.loads, (cloudpickle.dumps(self.content),)


class CarriedStream(Carried, IterableDataset[Any]):
    """A stream on its way to a worker process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.content)


class EndWithParent:
    """What a worker process calls first: it ends as soon as its parent does.

    PyTorch's worker processes look for their parent while they wait for work. One that has more to
    deliver than a pipe holds would wait forever for a parent that was killed.

    Parameters
    ----------
    then : callable or None
        The user's ``worker_init_fn``.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self.then = then

    def __call__(self, number: int) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=_follow, args=(parent,), daemon=True).start()
        if self.then is not None:
            self.then(number)


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


class ChunkLoader:
    """A ``DataLoader`` that delivers chunks of rows, and the worker processes that it has started.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        What to read.
    options : dict
        The user's arguments of the loader.
    loader : class
        ``DataLoader`` or a subclass.
    chunk : int
        Rows that a worker process delivers at a time.
    **settings
        Further arguments of the loader, which replace the user's.
    """

    def __init__(
        self,
        dataset: Any,
        options: dict[str, Any],
        *,
        loader: type[Any],
        chunk: int,
        **settings: Any,
    ) -> None:
        check_options(options)
        self._generator = torch.Generator()
        whole = "batch_size" in options  # None: the data set yields batches
        settings = {"batch_size": chunk, **options, **settings, "generator": self._generator}
        if options.get("collate_fn") is not None and not whole:
            # The user's function must see each batch as a whole: here the loader delivers lists of
            # items, and RowBuffer calls the function.
            settings["collate_fn"] = list
        if settings.get("num_workers"):
            settings.setdefault("persistent_workers", True)
            given = settings.get("worker_init_fn")
            settings["worker_init_fn"] = EndWithParent(None if given is None else Carried(given))
        self.loader = loader(dataset, **settings)
        self._delivering: Any = None

    def chunks(self, seed: int, epoch: int) -> Iterator[Any]:
        """Begin an epoch. Worker processes that persist leave what they were reading.

        The loader must not draw the seeds of its worker processes from the global generator:
        dropout draws from it, so ``num_workers`` would change the result.
        """
        self._generator.manual_seed(seed * 1_000_003 + epoch)
        if not self.loader.persistent_workers:
            self.close()
        self._delivering = start_workers(self.loader)
        found: Iterator[Any] = self._delivering
        return found

    def close(self) -> None:
        """End the worker processes."""
        delivering, self._delivering = self._delivering, None
        if delivering is not None:
            end_workers(self.loader, delivering)


def check_options(options: dict[str, Any]) -> None:
    """Refuse arguments of the loader that would have no effect, or change what is computed."""
    if options.get("generator") is not None:
        raise UnsupportedError(
            "iterator_train__generator would have no effect: random_state decides the order of the "
            "rows and what worker processes draw. Leave it out, and pass random_state."
        )
    if not options.get("in_order", True):
        raise UnsupportedError(
            "iterator_train__in_order=False takes rows in the order in which worker processes "
            "happen to be ready, so that no run could be repeated. Leave it out."
        )


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

    def release(self, rows: int, *place: int) -> Any:
        """Remove the first `rows` rows, and return them as one batch; see :meth:`collated`."""
        return self.collated(self.cut(rows), *place)

    def collated(self, taken: Any, *place: int) -> Any:
        """Return rows that were cut off as one batch; numbers of its place seed the function."""
        if self.collate is None:
            return taken
        with Draws(*place)():
            return self.collate(taken)

    def discard(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Read `rows` rows and yield them in pieces; the collate function does not see them."""
        while rows > 0:
            self.fill(min(rows, 1024))
            count = min(rows, 1024, self.n_rows)
            if count == 0:
                return
            yield count, self.cut(count)
            rows -= count

    def first(self, rows: int) -> Any:
        """Return the first `rows` rows and keep them."""
        if len(self._held) > 1:
            self._held = [self._joined()]
        return self._held[0][:rows] if self.collate else slice_rows(self._held[0], 0, rows)

    def _hold(self, chunk: Any) -> None:
        if self.collate is None and not only_tensors(chunk):
            raise UnsupportedError(
                "The Dataset's items become batches that are not tensors with one row per example, "
                "so they cannot be joined to a larger batch. Pass iterator_train__collate_fn."
            )
        self._held.append(chunk)
        self.n_rows += count_rows(chunk) if self.collate is None else len(chunk)

    def cut(self, rows: int) -> Any:
        """Remove the first `rows` rows: tensors, or a list of items for the collate function."""
        self.n_rows -= rows
        joined = self._joined()
        if self.collate is not None:
            self._held = [joined[rows:]] if self.n_rows else []
            return joined[:rows]
        self._held = [slice_rows(joined, rows, rows + self.n_rows)] if self.n_rows else []
        return slice_rows(joined, 0, rows)

    def _joined(self) -> Any:
        if self.collate is not None:
            return [item for chunk in self._held for item in chunk]
        return concatenate(self._held)
