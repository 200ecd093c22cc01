"""How many rows go through the model at once.

Gradients of micro-batches add up to the gradient of the batch, so this decides speed and memory,
not the result. What is fast on a CPU is that the tensors kept for the backward pass stay small
enough for the caches and for malloc to reuse: a convolutional net runs up to twice as fast in
micro-batches of a hundred rows, a small dense net is fastest in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

KEPT_BYTES = 32 * 2**20  # what one micro-batch may keep for its backward pass
FEWEST_ROWS = 32
PROBE_ROWS = 64
TRIALS = 2  # updates per candidate; the faster one counts
WORTH = 0.95  # a candidate must take at most this share of the rule's time

BATCH_COUPLED = (nn.modules.batchnorm._BatchNorm,)


def couples_rows(module: nn.Module) -> bool:
    """Tell whether a row's output depends on the other rows of its batch, as under BatchNorm."""
    return any(isinstance(part, BATCH_COUPLED) for part in module.modules())


def rows_for(bytes_per_row: float) -> int:
    """Return the largest power of two of rows that keeps within :data:`KEPT_BYTES`.

    Examples
    --------
    >>> rows_for(140_000)
    128
    """
    rows = max(FEWEST_ROWS, int(KEPT_BYTES / max(bytes_per_row, 1.0)))
    return 1 << (rows.bit_length() - 1)


@contextmanager
def kept_bytes(module: nn.Module) -> Iterator[list[int]]:
    """Count the bytes that the computations inside keep for the backward pass."""
    seen = {parameter.data_ptr() for parameter in module.parameters()}
    total = [0]

    def count(tensor: torch.Tensor) -> torch.Tensor:
        # By tensor, not by storage: a micro-batch is a view into the storage of the whole batch.
        if tensor.layout == torch.strided and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            total[0] += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield total


@dataclass
class MicroBatch:
    """The choice of rows per micro-batch, made during the first updates.

    The first micro-batch of the first update tells how many bytes a row keeps, and with them a
    size. With ``timed`` the sizes around it then compete over the next updates. A seeded run is
    not timed: whether rounding errors fall one way or the other must not depend on a clock.

    Attributes
    ----------
    fixed : int or None
        The user's own size.
    whole : bool
        Never divide a batch.
    timed : bool
        Let the neighbouring sizes compete.
    rows : int or None
        The size found; None while nothing is known.
    """

    fixed: int | None = None
    whole: bool = False
    timed: bool = False
    rows: int | None = None
    seconds: dict[int, list[float]] = field(default_factory=dict)
    used: int = 0

    def size(self, batch_rows: int) -> int:
        """Return how many rows of a batch go through the model next."""
        if self.whole:
            return batch_rows
        if self.fixed is not None:
            return self.fixed
        if self.rows is None:
            return PROBE_ROWS
        self.used = self._candidate(batch_rows)
        return self.used

    @property
    def probing(self) -> bool:
        """Whether the next micro-batch tells how many bytes a row keeps."""
        return not self.whole and self.fixed is None and self.rows is None

    @contextmanager
    def weighing(self, module: nn.Module, rows: int) -> Iterator[None]:
        """Weigh the forward pass inside, if that has not been done yet."""
        if not self.probing:
            yield
            return
        with kept_bytes(module) as kept:
            yield
        self.weigh(kept[0], rows)

    def weigh(self, kept: int, rows: int) -> None:
        """Take in what the probe kept."""
        self.rows = rows_for(kept / rows)
        if self.timed:
            around = (self.rows // 2, self.rows, self.rows * 2, self.rows * 4)
            self.seconds = {size: [] for size in around}

    def observe(self, batch_rows: int, seconds: float) -> None:
        """Take in how long the last cut took, and settle once every candidate has had its turns."""
        if self.used not in self.seconds or batch_rows <= self.used:
            return
        self.seconds[self.used].append(seconds / batch_rows)
        if all(len(times) >= TRIALS for times in self.seconds.values()):
            assert self.rows is not None
            best = {size: min(times) for size, times in self.seconds.items()}
            fastest = min(best, key=lambda size: best[size])
            if best[fastest] < WORTH * best[self.rows]:
                self.rows = fastest
            self.seconds = {}

    def _candidate(self, batch_rows: int) -> int:
        assert self.rows is not None
        untried = (size for size, times in self.seconds.items() if len(times) < TRIALS)
        return next((size for size in untried if size < batch_rows), self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return what a resumed run must know to cut its batches the same way."""
        return {"rows": self.rows, "seconds": {str(k): v for k, v in self.seconds.items()}}

    def from_json(self, saved: dict[str, Any]) -> None:
        """Take up a saved choice."""
        self.rows = saved["rows"]
        self.seconds = {int(size): list(times) for size, times in saved["seconds"].items()}
