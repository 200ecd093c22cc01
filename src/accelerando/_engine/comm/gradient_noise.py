"""Gradient noise: the gradient norms of the parts of a batch, of micro-batches or of ranks.

Estimates of the noise compare the norm of the mean gradient with those of its parts. On a single
rank the parts are micro-batches (:class:`MicroBatchNorms`); ranks are compared in DDP's
communication hook (:class:`RankNorms`).
"""

# Annotations must be evaluated here: PyTorch compares those of the hook with its own types.

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from accelerando._engine.comm.communicator import PartNorms
from accelerando._engine.comm.process_group import BucketSums, ProcessGroup

NOT_NOW = -float(2**20)  # parts of a rank that measures its rows in other updates


class MicroBatchNorms:
    """Measure the gradient of each micro-batch while those of earlier ones are set aside.

    Parameters
    ----------
    parameters : sequence of Tensor
        The learnable parameters.

    Examples
    --------
    >>> norms = MicroBatchNorms([])
    >>> norms.add(squared_norm=4.0, mass=0.5)
    >>> norms.add(squared_norm=1.0, mass=0.5)
    >>> norms.result(sums=False)
    PartNorms(number=2, square=10.0)
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self._earlier: list[torch.Tensor | None] = [None] * len(parameters)
        self._number, self._square, self._mass = 0, 0.0, 0.0

    def add(self, squared_norm: float, mass: float) -> None:
        """Add the squared gradient norm of one part; a part without mass does not count."""
        if mass > 0.0:
            self._number += 1
            self._square += squared_norm / mass
            self._mass += mass

    def set_aside(self) -> None:
        """Keep what is in ``.grad`` for later, and clear it for the next part."""
        for number, parameter in enumerate(self.parameters):
            self._earlier[number] = _sum(self._earlier[number], parameter.grad)
            parameter.grad = None

    def restore(self) -> None:
        """Add what was set aside to the gradient of the last part."""
        for parameter, earlier in zip(self.parameters, self._earlier, strict=True):
            # Into the tensor that is there: under DDP it is a view of a bucket.
            parameter.grad = _sum(parameter.grad, earlier)

    def result(self, *, sums: bool) -> PartNorms:
        """Return the number of parts and the mean squared norm of their mean gradients.

        If the loss is a sum over rows (`sums`), the division by the rows is left to the loop.
        """
        square = self._square if sums else self._square / max(self._mass, 1e-300)
        return PartNorms(self._number, square)


class RankNorms:
    """DDP's communication hook: measure every bucket of gradients before it is summed.

    A model that fits into one bucket sends its squared norm in the tail, with the bucket. A larger
    one has sent its tail before the last gradients exist. The number then has its own message next
    to the last bucket, so nobody waits longer for it.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    tail : torch.nn.Parameter
        See :mod:`accelerando._engine.comm.ddp`.
    position : int
        Position of the number in the tail.
    """

    def __init__(self, group: ProcessGroup, tail: nn.Parameter, position: int) -> None:
        self.group = group
        self.tail = tail
        self.position = position
        self.rows: Any = None  # the RowNorms of this update, if rows are compared
        self.scale = 0.0  # one over the mass of this rank's rows; set before every update
        self._square: Any = 0.0
        self._message: torch.Tensor | None = None
        self._work: Any = None
        self._sums = BucketSums(group)

    def begin(self, mass: float, held: int) -> float:
        """Return the number of parts of this rank, whose rows have that mass."""
        self.scale = 1.0 / mass if mass > 0.0 else 0.0
        if self.rows is None:
            return float(mass > 0.0)
        self.scale *= held  # every row is a separate part
        return float(held) if self.rows.due else NOT_NOW

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum this bucket over the ranks after measuring it."""
        buffer = bucket.buffer()
        tail = self._tail_of(bucket)
        if self.rows is not None:
            # The hooks of all layers have fired before the last bucket is complete.
            due = bucket.is_last() and self.rows.due
            self._square = buffer.new_tensor(self.rows.square() if due else 0.0)
        elif tail is None:
            self._square = self._square + _dot(buffer)
        else:
            start = tail.storage_offset() - buffer.storage_offset()
            self._square = self._square + _dot(buffer[:start]) + _dot(buffer[start + len(tail) :])
        if bucket.is_last():
            number, self._square = self._square * self.scale, 0.0
            if tail is not None:
                tail[self.position] = number
            else:
                self._message = number.reshape(1).to(torch.float32)
                self._work = self.group.start([self._message])
        return self._sums.send(buffer, last=bucket.is_last())

    def collect(self, in_tail: float) -> float:
        """Return the sum over the ranks, from the tail or from its own message."""
        if self._work is None:
            return in_tail
        self.group.wait(self._work)
        assert self._message is not None
        self._work = None
        return float(self._message)

    def _tail_of(self, bucket: GradBucket) -> torch.Tensor | None:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter is self.tail:
                flat: torch.Tensor = gradient.view(-1)
                return flat
        return None


def part_norms(number: float, square: float) -> PartNorms:
    """Return what ranks said together; no part if one of them did not measure.

    >>> part_norms(3.0, 2.0), part_norms(1.0 + NOT_NOW, 2.0)
    (PartNorms(number=3, square=2.0), PartNorms(number=0, square=0.0))
    """
    measured = number > 0.0 and not math.isnan(square)
    return PartNorms(round(number), square) if measured else PartNorms(0, 0.0)


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second if first.is_sparse or second.is_sparse else first.add_(second)


def _dot(values: torch.Tensor) -> torch.Tensor:
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()  # squares overflow in half precision
    return values.dot(values)
