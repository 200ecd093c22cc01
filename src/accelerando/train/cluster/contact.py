"""One rank's contact with the others: a process group, sums over it, and the wish to pause."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from accelerando.exceptions import ClusterError
from accelerando.train.feed import Part
from accelerando.train.parts import Parts
from accelerando.train.world import Traffic, seed_of


class Contact:
    """What ranks have in common, whatever they exchange in an update.

    Parameters
    ----------
    processes : torch.distributed.ProcessGroup
        See :func:`~accelerando.train.cluster.forming.form`.
    device : torch.device
        On which tensors are exchanged.
    """

    def __init__(self, processes: Any, device: torch.device) -> None:
        self.part = Part(processes.rank(), processes.size())
        self.processes = processes
        self.device = device
        self.pause = False  # what this rank says
        self.paused = False  # what all ranks have agreed on
        self.failure: RuntimeError | None = None  # what ends training after the update
        self.traffic = Traffic()
        self.parts: Parts | None = None
        self.fingerprint = 0.0
        self._clock = self._clocks = (-1.0, -1.0)  # own seconds and waiting; those of all ranks

    def begin_segment(self) -> None:
        """Forget what belongs to the time before a pause."""
        self.pause = self.paused = False
        self._clock = self._clocks = (-1.0, -1.0)

    def seed(self, seed: int, update: int) -> None:
        """Make dropout depend on the seed, the update and the rank, not on what happened before."""
        mixed = seed_of(seed, update, self.part.rank)
        torch.default_generator.manual_seed(mixed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(mixed)

    def timed(self, seconds: float) -> tuple[float, float]:
        self._clock = (seconds, self.traffic.seconds)
        size, (all_seconds, all_waited) = self.part.size, self._clocks
        if size == 1:
            return seconds, 0.0
        if all_seconds < 0.0:
            return math.nan, math.nan
        return all_seconds / size, all_waited / size

    def check_fingerprint(self, total: float) -> None:
        """Raise if policies have decided differently on another rank."""
        if abs(total - self.part.size * self.fingerprint) > 0.5:
            raise ClusterError(
                "Policies have decided differently on different ranks. They must depend on their "
                "signals and their memory only: no clock, no random numbers, no files, no global "
                "variables."
            )

    # -- sums -----------------------------------------------------------------------------------

    def wait(self, *works: Any) -> None:
        """Wait for messages on their way."""
        for work in works:
            work.wait()

    def total(self, *numbers: float) -> list[float]:
        return self.begin_sum((), numbers)()

    def add_up(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()) -> list[float]:
        """Add tensors up over the ranks, in place, and return the sums of the numbers."""
        return self.begin_sum(tensors, numbers)()

    def begin_sum(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()
    ) -> Callable[[], list[float]]:
        """Send tensors and numbers off; what is returned waits, and does as :meth:`add_up`.

        There is one message for each number type. Numbers have theirs in double precision, at the
        same time: in one with tensors, their count would decide in which order a ring adds up.
        """
        if self.part.size == 1:
            return lambda: list(numbers)
        told = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        works = [self.processes.allreduce([told])] if numbers else []
        sent = []
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            some = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            works.append(self.processes.allreduce([flat]))
            sent.append((some, flat))

        def arrive() -> list[float]:
            self.wait(*works)
            for some, flat in sent:
                parts = torch.split(flat, [one.numel() for one in some])
                views = [part.view(one.shape) for part, one in zip(parts, some, strict=True)]
                torch._foreach_copy_(some, views)
            return told.tolist()

        return arrive

    def total_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            self.add_gradients(parameter)

    def add_gradients(self, parameter: torch.Tensor) -> None:
        """Let a parameter's gradient be the sum over the ranks; none counts as zero."""
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dense = (found.to_dense() if found.is_sparse else found).contiguous()
        self.processes.allreduce([dense]).wait()
        parameter.grad = dense

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        """Send a byte string from one rank to all."""
        length = torch.tensor([len(content) if content is not None else 0], device=self.device)
        options = dist.BroadcastOptions()
        options.rootRank = source
        self.processes.broadcast([length], options).wait()
        data = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if content is not None:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)
        self.processes.broadcast([data], options).wait()
        return bytes(data.cpu().numpy())


def is_loss_of_contact(error: BaseException) -> bool:
    """Tell an error of the network between ranks from one of the user's own code."""
    text = str(error)
    known = ("gloo", "NCCL", "ncclSystemError", "Connection closed by peer", "Broken pipe")
    return isinstance(error, RuntimeError) and any(word in text for word in known)
