"""Process groups: one rank's connection to the others.

A group forms sums over its ranks and lets them agree on pauses, clocks and plans. What fails in a
message between ranks is a loss of contact, whatever its text says. An error of the user's module
with the same text stays an error of the user's module.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from accelerando._engine._torch import foreach_copy_, make_process_group
from accelerando._engine.comm.communicator import Traffic, all_reduce_bytes, dropout_seed
from accelerando._engine.data.feed import Shard
from accelerando._engine.runtime.process import UpdateSeeds
from accelerando.exceptions import ClusterError

NUMBER_BYTES = 8
_UNKNOWN = (-1.0, -1.0)  # clocks before the first exchange


class LostContact(RuntimeError):  # noqa: N818  the event, not a mistake of anybody
    """A message between ranks failed: another rank does not answer any more."""


class ProcessGroup:
    """One rank's end of a process group.

    Parameters
    ----------
    processes : torch.distributed.ProcessGroup
        See :func:`form`.
    device : torch.device
        Device of the tensors that are exchanged.

    Attributes
    ----------
    shard : Shard
        This rank among the ranks.
    pause, switch : bool
        What this rank asks for: to pause, and to continue with other ranks.
    paused, switching : bool
        What all ranks have agreed on.
    failure : RuntimeError or None
        Ends training after the update in which it occurred.
    fingerprint : float
        Of the plan of the current update.
    lost : str or None
        What the first message that failed said. Nothing can be sent in this group any more.
    """

    here = 1

    def __init__(self, processes: dist.ProcessGroup, device: torch.device) -> None:
        self.shard = Shard(processes.rank(), processes.size())
        self.device = device
        self.fingerprint = 0.0
        self.lost: str | None = None
        self._seed = UpdateSeeds()
        self._processes: dist.ProcessGroup | None = processes
        self._message_bytes = 0
        self._wait_seconds = 0.0
        self.begin_segment()

    @property
    def processes(self) -> dist.ProcessGroup:
        """PyTorch's group."""
        if self._processes is None:
            raise LostContact("This rank has left its process group.")
        return self._processes

    def begin_segment(self) -> None:
        """Forget what belongs to the time before a pause."""
        self.pause = self.paused = False
        self.switch = self.switching = False
        self.failure: RuntimeError | None = None
        self.clock = self._clocks = _UNKNOWN  # seconds and waiting: of this rank, summed over all

    def set_timeout(self, seconds: float) -> None:
        """Set the time after which a silent rank counts as lost."""
        self.processes.set_timeout(timedelta(seconds=seconds))

    def close(self) -> None:
        """Release the group now, so that ranks that wait for this one fail at once, too."""
        self._processes = None

    # -- lost contact -----------------------------------------------------------------------------

    @contextmanager
    def contact(self) -> Iterator[None]:
        """Turn what fails inside into :class:`LostContact`: it may contain messages only.

        Tracebacks are dropped: the frames hold the group, which must be released at once.
        """
        try:
            yield
        except torch.OutOfMemoryError:
            raise  # of this rank
        except (RuntimeError, OSError) as error:
            self.lost = self.lost or str(error)
            error.__traceback__ = None
        else:
            return
        raise LostContact(self.lost)

    def check_contact(self) -> None:
        """Raise :class:`LostContact` if a message has failed and somebody else caught the error."""
        if self.lost is not None:
            raise LostContact(self.lost)

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Raise :class:`LostContact` for an error inside if a message has failed inside.

        A backward pass runs the user's functions and exchanges gradients. The error of a message
        passes through PyTorch's engine, which may change it.
        """
        try:
            yield
        except Exception as error:
            if self.lost is None:
                raise
            error.__traceback__ = None
        else:
            return
        raise LostContact(self.lost)

    def is_lost(self, error: RuntimeError) -> bool:
        """Return True if an error is a loss of contact; it is then kept as the failure."""
        if not isinstance(error, LostContact):
            return False
        error.__traceback__ = None  # its frames hold the group, which must be released
        self.failure = error
        return True

    # -- agreement --------------------------------------------------------------------------------

    def seed(self, seed: int, update: int) -> None:
        """Make dropout depend on the seed, the update and the rank, not on what came before."""
        self._seed(dropout_seed(seed, update, self.shard.rank))

    def seed_dropout(self, seed: int, update: int, replica: int, *, seeded: bool) -> None:
        """Seed always: ranks have no common generator that an unseeded run could follow."""
        self.seed(seed, update)

    def agree(self, pause: float, clocks: tuple[float, float], fingerprint: float) -> None:
        """Take over the sums of what all ranks said with an update.

        Raises
        ------
        ClusterError
            If policies have decided differently on another rank.
        """
        self.paused = self.paused or pause > 0
        self._clocks = clocks
        if abs(fingerprint - self.shard.size * self.fingerprint) > 0.5:
            raise ClusterError(
                "Policies have decided differently on different ranks. They must depend on their "
                "signals and their memory only: no clock, no random numbers, no files, no global "
                "variables."
            )

    def mean_seconds(self, seconds: float, waited: float) -> tuple[float, float]:
        """Record this rank's clock; return the means over the ranks.

        Clocks travel with the next update; before the first one the means are nan.
        """
        self.clock = (seconds, waited)
        if self.shard.size == 1:
            return seconds, 0.0
        if self._clocks[0] < 0.0:
            return math.nan, math.nan
        return self._clocks[0] / self.shard.size, self._clocks[1] / self.shard.size

    # -- sums -------------------------------------------------------------------------------------

    def sum(self, *numbers: float) -> list[float]:
        """Return the sums of the numbers over the ranks."""
        return self.start_sum((), numbers)()

    def sum_tensors(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()
    ) -> list[float]:
        """Sum tensors over the ranks in place, and return the sums of the numbers."""
        return self.start_sum(tensors, numbers)()

    def start_sum(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()
    ) -> Callable[[], list[float]]:
        """Send tensors and numbers; return a function that waits, and does as :meth:`sum_tensors`.

        There is one message for each dtype. Numbers have their own message, in double precision
        and at the same time: in one buffer with the tensors, their count would shift where a ring
        of three or more ranks cuts it, and with it the order of the additions.
        """
        if self.shard.size == 1:
            return lambda: list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        works = [self.start([values])] if numbers else []
        sent = []
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            some = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            works.append(self.start([flat]))
            sent.append((some, flat))

        def wait() -> list[float]:
            self.wait(*works)
            for some, flat in sent:
                parts = torch.split(flat, [one.numel() for one in some])
                views = [part.view(one.shape) for part, one in zip(parts, some, strict=True)]
                foreach_copy_(some, views)
            found: list[float] = values.tolist()
            return found

        return wait

    def start_exchange(
        self, numbers: Sequence[float], tensors: Sequence[torch.Tensor] = ()
    ) -> Callable[[], list[float]]:
        """Start a sum whose message also carries pauses, clocks and the plan's fingerprint."""
        own = (float(self.pause), float(self.switch), *self.clock, self.fingerprint)
        wait_for_sums = self.start_sum(tensors, [*own, *numbers])

        def wait() -> list[float]:
            sums = wait_for_sums()
            self._message_bytes += len(sums) * NUMBER_BYTES
            pause, switch, seconds, waited, fingerprint = sums[: len(own)]
            self.switching = self.switching or switch > 0
            self.agree(pause, (seconds, waited), fingerprint)
            return sums[len(own) :]

        return wait

    def start(self, tensors: list[torch.Tensor]) -> Any:
        """Start to sum tensors over the ranks in place; see :meth:`wait`."""
        with self.contact():
            return self.processes.allreduce(tensors)

    def wait(self, *works: Any) -> None:
        """Wait for messages on their way."""
        started = time.perf_counter()
        with self.contact():
            for work in works:
                work.wait()
        self._wait_seconds += time.perf_counter() - started

    def take_traffic(self) -> Traffic:
        """Return the bytes of exchanged numbers and the waiting time since the last call."""
        sent = all_reduce_bytes(self._message_bytes, self.shard.size)
        traffic = Traffic(sent, self._wait_seconds)
        self._message_bytes, self._wait_seconds = 0, 0.0
        return traffic

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum one tensor over the ranks in place."""
        with self.contact():
            self.processes.allreduce([tensor]).wait()

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Let each ``.grad`` be the sum over the ranks; a missing one counts as zero."""
        for parameter in parameters:
            found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dense = (found.to_dense() if found.is_sparse else found).contiguous()
            self.all_reduce(dense)
            parameter.grad = dense

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        """Send a byte string from one rank to all; the others pass None."""
        length = torch.tensor([len(content) if content is not None else 0], device=self.device)
        options = dist.BroadcastOptions()
        options.rootRank = source
        with self.contact():
            self.processes.broadcast([length], options).wait()
        if not int(length):
            return b""
        data = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if content is not None:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)
        with self.contact():
            self.processes.broadcast([data], options).wait()
        return bytes(data.cpu().numpy())


class BucketSums:
    """Sums of DDP's buckets of gradients, in a communication hook instead of inside DDP.

    A bucket is sent as soon as it is full, while the backward pass continues. All are awaited with
    the last one. DDP would wait in C++, and an error of a message would be one of the backward
    pass, in which the user's functions run, too.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self._sent: list[tuple[Any, torch.futures.Future[torch.Tensor], torch.Tensor]] = []

    def send(self, buffer: torch.Tensor, *, last: bool) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the sum over the ranks; with the last bucket, wait for all."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if self.group.shard.size == 1:
            future.set_result(buffer)
            return future
        self._sent.append((self.group.start([buffer]), future, buffer))
        if last:
            sent, self._sent = self._sent, []
            self.group.wait(*(work for work, _, _ in sent))
            for _, waiting, found in sent:
                waiting.set_result(found)
        return future


# -- forming --------------------------------------------------------------------------------------


def form(
    store: Any,
    rank: int,
    size: int,
    *,
    seconds: float,
    address: str,
    device: torch.device,
    ports: tuple[int, int] | None = None,
) -> dist.ProcessGroup:
    """Form a process group that PyTorch's global registry does not contain.

    Several can exist in one process, and a failed one is dropped like any other object.

    Parameters
    ----------
    store : torch.distributed.Store
        Where ranks exchange their addresses.
    rank, size : int
        This rank, and the number of ranks.
    seconds : float
        Timeout of collective operations.
    address : str
        Where the Dask worker listens, so that gloo listens there, too, and on no other interface.
    device : torch.device
        Device of the tensors.
    ports : (int, int) or None
        The first and the last port on which gloo may listen.
    """
    backend = backend_for(device_names(store, rank, size, device))
    options: Any = {"seconds": seconds, "address": address, "device": device, "ports": ports}
    return make_process_group(store, rank, size, backend=backend, **options)


def device_names(store: Any, rank: int, size: int, device: torch.device) -> list[str]:
    """Exchange the names of the ranks' GPUs; the name of a CPU is empty."""
    if device.type != "cuda":
        return [""] * size
    store.set(f"device/{rank}", device_name(device))
    return [store.get(f"device/{other}").decode() for other in range(size)]


def device_name(device: torch.device) -> str:
    """Return a name that no other GPU of any machine has."""
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"


def backend_for(names: Sequence[str]) -> Literal["gloo", "nccl"]:
    """Return the backend for ranks with these devices.

    NCCL does not accept two ranks on one GPU. Gloo does: its messages go through CPU memory.

    Examples
    --------
    >>> backend_for(["", ""]), backend_for(["host a", "host b"]), backend_for(["host a", "host a"])
    ('gloo', 'nccl', 'gloo')
    """
    return "nccl" if all(names) and len(set(names)) == len(names) else "gloo"
