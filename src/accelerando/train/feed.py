"""What a training set looks like to the loop: epochs, streams, batches, a rank's part of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from accelerando.train.order import Rows

Order = Callable[[int, int, int], Rows]


class Batch(NamedTuple):
    """What one update sees.

    Attributes
    ----------
    data : (X, y)
        This rank's rows of the batch. A rank whose share is empty gets one row all the same, since
        it has to take part in the update.
    size : int
        Rows of the batch, those of all ranks together.
    rows : array or None
        Which rows of the training set the data are; None for a stream.
    held : int
        Rows that count for this rank; 0 if its share is empty.
    """

    data: Any
    size: int
    rows: Rows | None
    held: int


class Part(NamedTuple):
    """Which rows of every batch are this rank's: each `size`-th of the epoch's order.

    Counting along the epoch and not along the batch lets a loader fetch a rank's rows ahead, before
    anybody knows how large the next batches will be.

    Examples
    --------
    >>> import numpy as np
    >>> Part(rank=1, size=3).of(np.arange(10, 18), start=4).tolist()
    [10, 13, 16]
    """

    rank: int = 0
    size: int = 1

    def of(self, rows: Any, start: int) -> Any:
        """Return this rank's share of `rows`, the first of which is number `start` of the epoch."""
        return rows if self.size == 1 else rows[(self.rank - start) % self.size :: self.size]


WHOLE = Part()


class Stream(Protocol):
    """The rest of one epoch."""

    def take(self, size: int, fewest: int = 1) -> Batch | None:
        """Return the next `size` rows, fewer at the end, None after it.

        If fewer than `fewest` rows would be left for the last batch, they come with this one.
        """


class Feed(Protocol):
    """A training set as the loop sees it."""

    n_examples: int | None

    def epoch(self, seed: int, epoch: int, cursor: int, part: Part = WHOLE) -> Stream:
        """Return a rank's part of an epoch's batches from row number `cursor` of its order on."""

    def gather(self, rows: Rows) -> Any:
        """Return the given rows as one batch ``(X, y)``."""

    def share(self, rows: Rows, part: Part) -> Rows:
        """Return a rank's share of some rows of the training set."""
