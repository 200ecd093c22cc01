"""The squared norm of a rank's own gradient, on its way to the others with the gradient itself."""

# No annotations as text here: PyTorch compares those of the hook with its own types.

from typing import Any, Optional

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]


class LocalSquares:
    """DDP's communication hook: look at every bucket of gradients before it is added up.

    A model that fits into one bucket sends the number in its tail, with the bucket. A larger one
    has sent its tail when the last gradients come, so that the number goes in a message of its
    own beside the last bucket, which nobody waits for longer.

    Parameters
    ----------
    processes : torch.distributed.ProcessGroup
        The ranks.
    tail : torch.nn.Parameter
        See :mod:`accelerando.train.cluster.group`.
    position : int
        Where in the tail the number goes.
    """

    def __init__(self, processes: Any, tail: nn.Parameter, position: int) -> None:
        self.processes = processes
        self.tail = tail
        self.position = position
        self.scale = 0.0  # one over the mass of this rank's rows; set before every update
        self._square: Any = 0.0
        self._beside: Optional[torch.Tensor] = None  # noqa: UP045  see above
        self._work: Any = None

    def meet(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Add this bucket up over the ranks, after a look at it."""
        buffer = bucket.buffer()
        tail = self._tail_of(bucket)
        if tail is None:
            self._square = self._square + _dot(buffer)
        else:
            start = tail.storage_offset() - buffer.storage_offset()
            self._square = self._square + _dot(buffer[:start]) + _dot(buffer[start + len(tail) :])
        if bucket.is_last():
            number, self._square = self._square * self.scale, 0.0
            if tail is not None:
                tail[self.position] = number
            else:
                self._beside = number.reshape(1).to(torch.float32)
                self._work = self.processes.allreduce([self._beside])
        future = self.processes.allreduce([buffer]).get_future()
        return future.then(_first)  # type: ignore[no-any-return]

    def collect(self, in_tail: float) -> float:
        """Return the sum over the ranks, wherever it came."""
        if self._work is None:
            return in_tail
        self._work.wait()
        assert self._beside is not None
        self._work = None
        return float(self._beside)

    def _tail_of(self, bucket: GradBucket) -> Optional[torch.Tensor]:  # noqa: UP045
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter is self.tail:
                flat: torch.Tensor = gradient.view(-1)
                return flat
        return None


def _first(future: torch.futures.Future[Any]) -> torch.Tensor:
    value: torch.Tensor = future.value()[0]
    return value


def _dot(values: torch.Tensor) -> torch.Tensor:
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()  # squares overflow in half precision
    return values.dot(values)
