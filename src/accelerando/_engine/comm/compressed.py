"""Compressed all-reduce: DDP's communication hooks for codecs and PowerSGD, and one process.

A hook decides what happens to a bucket of gradients instead of an all-reduce.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

from accelerando._engine.comm.communicator import SingleProcess, Traffic, all_reduce_bytes
from accelerando._engine.comm.exchange import Exchange, is_small, pieces_of
from accelerando._engine.comm.feedback_memory import Memory
from accelerando._engine.comm.process_group import LostContact, ProcessGroup
from accelerando._engine.comm.shards import Piece
from accelerando.compress import Adaptive, Codec, ErrorFeedback, PowerSGD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelerando._decisions import Plan
    from accelerando._engine.data.feed import Batch
    from accelerando._engine.model import Components
    from accelerando._engine.state import TrainState
    from accelerando.compress import Compressor


class CommHook(Protocol):
    """Protocol of the hooks of :class:`~accelerando._engine.comm.ddp.DDPAllReduce`.

    Attributes
    ----------
    remembers : bool
        Whether it may send what it held back of a parameter that has no gradient now.
    """

    remembers: bool

    @property
    def traffic(self) -> Traffic:
        """Cost of the newest update."""

    def begin(self, values: Mapping[str, float], seed: int) -> None:
        """Prepare an update; `values` are the signals before it."""

    def __call__(self, bucket: Any) -> Any:
        """Exchange a bucket; return a future of the mean."""

    def forget(self, unused: Sequence[torch.Tensor]) -> None:
        """Undo what was remembered of the update for parameters that no rank has used."""

    def close(self) -> None:
        """Release the process group."""


def make_hook(
    compressor: Compressor, carrier: nn.Module, group: ProcessGroup, memory: Memory
) -> CommHook:
    """Return the hook that carries a compressor out."""
    if isinstance(compressor, PowerSGD):
        return PowerHook(compressor, group)
    assert isinstance(compressor, Codec | ErrorFeedback | Adaptive)
    return CodecHook(compressor, carrier, group, memory)


class CodecHook:
    """Encoded gradients, all to all or in two phases.

    A bucket is encoded and sent as soon as DDP has filled it, while the backward pass continues; a
    codec that divides its bytes among all layers waits for the last bucket. The messages of the
    others are awaited and decoded with the last bucket. The thread of the
    backward pass launches all collective operations, in the order of the buckets, as it does those
    of BatchNorm: in any other order they could cross on another rank.

    Parameters
    ----------
    compressor : Codec, ErrorFeedback or Adaptive
        How gradients are encoded.
    carrier : torch.nn.Module
        Whose names of parameters seed the draws of codecs; with a ``tail``.
    group : ProcessGroup
        The ranks.
    memory : dict
        Of error feedback.
    """

    def __init__(
        self,
        compressor: Codec | ErrorFeedback | Adaptive,
        carrier: nn.Module,
        group: ProcessGroup,
        memory: Memory,
    ) -> None:
        self._names = {id(parameter): name for name, parameter in carrier.named_parameters()}
        tail = carrier.get_parameter("tail")
        self._tail = id(tail)
        transport = AllToAll(group, tail.device)
        self.exchange = Exchange(compressor, *group.shard, transport, memory)
        self.remembers = not isinstance(compressor, Codec)
        self._open: list[tuple[Any, torch.Tensor]] = []
        self._pieces: list[Piece] = []  # not sent yet

    @property
    def traffic(self) -> Traffic:
        return self.exchange.traffic

    def begin(self, values: Mapping[str, float], seed: int) -> None:
        self._open, self._pieces = [], []
        self.exchange.begin(values, seed)

    def __call__(self, bucket: Any) -> Any:
        found = zip(bucket.parameters(), bucket.gradients(), strict=True)
        self._pieces += [
            Piece(self._names[id(p)], gradient, id(p) == self._tail or is_small(p))
            for p, gradient in found
        ]
        if bucket.is_last() or not self.exchange.joint:
            self.exchange.send(self._pieces)
            self._pieces = []
        future: Any = torch.futures.Future()
        self._open.append((future, bucket.buffer()))
        if bucket.is_last():
            self.exchange.receive()
            done, self._open = self._open, []
            for waiting, buffer in done:
                waiting.set_result(buffer)
        return future

    def forget(self, unused: Sequence[torch.Tensor]) -> None:
        self.exchange.forget([self._names[id(parameter)] for parameter in unused])

    def close(self) -> None:
        self._open, self._pieces = [], []


@dataclass
class AllToAll:
    """Sends a buffer to each rank of a group.

    Attributes
    ----------
    group : ProcessGroup
        The ranks.
    device : torch.device
        On which their buffers travel.
    """

    group: ProcessGroup
    device: torch.device

    def __call__(self, buffers: Sequence[torch.Tensor], lengths: Sequence[int]) -> _Arriving:
        sent = torch.cat(list(buffers)).to(self.device)
        found = torch.empty(sum(lengths), dtype=torch.uint8, device=self.device)
        with self.group.contact():
            work = self.group.processes.alltoall_base(
                found, sent, list(lengths), [len(buffer) for buffer in buffers]
            )
        return _Arriving(self.group, work, torch.split(found, list(lengths)), sent)


@dataclass
class _Arriving:
    group: ProcessGroup
    work: Any
    found: Sequence[torch.Tensor]
    buffer: torch.Tensor  # not to be freed while it is sent

    def wait(self) -> Sequence[torch.Tensor]:
        with self.group.contact():
            self.work.wait()
        return self.found


class LentGroup:
    """A process group for a hook of PyTorch, whose functions run in the threads of the group.

    A process group joins its threads when the last reference to it goes. A thread that holds this
    reference would join itself, which ends the process. Such a thread may hold PyTorch's functions,
    and what they refer to, for a while after their result has arrived. So they refer to this
    object, and the thread that closes it drops PyTorch's group.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._processes: Any = group.processes
        self._size = group.shard.size
        self._calling = threading.Lock()  # while another thread uses the group, `close` waits

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        """Start to sum tensors over the ranks."""
        with self._calling:
            if self._processes is None:
                raise LostContact("This rank has left its process group.")
            return self._processes.allreduce(tensors, options)

    def close(self) -> None:
        """Drop PyTorch's group."""
        with self._calling:
            self._processes = None


class PowerHook:
    """PyTorch's PowerSGD.

    It is awaited bucket by bucket: other threads launch its later all-reduces, which would cross
    with those of the next bucket or of BatchNorm.

    Parameters
    ----------
    settings : PowerSGD
        Rank of the approximation, and the update at which it starts.
    group : ProcessGroup
        The ranks.
    """

    remembers = False  # per bucket: what it held back of a skipped layer may arrive later

    def __init__(self, settings: PowerSGD, group: ProcessGroup) -> None:
        self.traffic = Traffic()
        self._group = group
        self._size = group.shard.size
        self._lent = LentGroup(group)
        # One more: DDP rebuilds its buckets after the first update of a group.
        self._state: Any = power.PowerSGDState(
            self._lent, settings.rank, start_powerSGD_iter=settings.start + 1
        )
        self._bytes, self._seconds = 0, 0.0

    def begin(self, values: Mapping[str, float], seed: int) -> None:
        self._bytes, self._seconds = 0, 0.0

    def __call__(self, bucket: Any) -> Any:
        """Call PyTorch's hook; the tail is a vector, which it leaves as it is."""
        started = time.perf_counter()
        state = self._state
        whole = state.iter < state.start_powerSGD_iter
        before = state.total_numel_after_compression
        with self._group.contact():
            future = power.powerSGD_hook(state, bucket)
            future.wait()
        buffer = bucket.buffer()
        after = state.total_numel_after_compression - before
        numbers = buffer.numel() if whole else after
        self._bytes += all_reduce_bytes(numbers * buffer.itemsize, self._size)
        self._seconds += time.perf_counter() - started
        self.traffic = Traffic(self._bytes, self._seconds)
        return future

    def forget(self, unused: Sequence[torch.Tensor]) -> None:
        return None

    def close(self) -> None:
        self._state = None
        self._lent.close()


class _Here(NamedTuple):
    """The message of a single rank, which has arrived before it was sent."""

    buffers: Sequence[torch.Tensor]
    lengths: Sequence[int]

    def wait(self) -> Sequence[torch.Tensor]:
        return self.buffers


class CompressedSingle(SingleProcess):
    """One rank in this process that steps with the decoded gradient.

    Step sizes can be tuned and budgets compared without a cluster.

    Parameters
    ----------
    compressor : Codec, ErrorFeedback or Adaptive
        How gradients are encoded.
    memory : dict, optional
        Of error feedback.
    """

    def __init__(self, compressor: Compressor, memory: Memory | None = None) -> None:
        super().__init__()
        assert isinstance(compressor, Codec | ErrorFeedback | Adaptive)  # others are refused before
        self.exchange = Exchange(compressor, 0, 1, _Here, {} if memory is None else memory)
        self._components: Components | None = None

    def begin_update(self, state: TrainState, plan: Plan, batch: Batch) -> None:
        super().begin_update(state, plan, batch)
        self._components = state.components
        self.exchange.begin(state.values(), state.seed)

    def backward(self, loss: torch.Tensor, mass: float, *, last: bool) -> None:
        super().backward(loss, mass, last=last)
        if last:
            assert self._components is not None
            self.exchange.send(pieces_of(self._components.named_parameters()))
            self.exchange.receive()
            self.traffic = self.exchange.traffic
