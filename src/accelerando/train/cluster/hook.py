"""Compressed gradients in PyTorch's DDP: what happens to a bucket instead of an all-reduction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

from accelerando.batch_size import Signals
from accelerando.compress import Adaptive, Codec, Compressor, ErrorFeedback, PowerSGD
from accelerando.sync import ring_bytes
from accelerando.train.exchange import Exchange, Piece, is_small
from accelerando.train.world import Traffic

Memory = dict[str, torch.Tensor | None]


class Hook(Protocol):
    """What a :class:`~accelerando.train.cluster.group.Group` asks of it."""

    meets: bool  # whether gradients can also be exchanged outside of DDP

    @property
    def traffic(self) -> Traffic:
        """What the last update cost."""

    def begin(self, signals: Signals, seed: int) -> None:
        """Prepare an update."""

    def __call__(self, bucket: Any) -> Any:
        """Exchange a bucket; return a future of the mean."""

    def meet(self, pieces: Sequence[Piece]) -> None:
        """Exchange gradients outside of DDP."""

    def close(self) -> None:
        """Let go of the process group."""


def make_hook(
    compressor: Compressor | None, carrier: nn.Module, processes: Any, memory: Memory
) -> Hook | None:
    """Return what carries a compressor out, None for none."""
    if compressor is None:
        return None
    if isinstance(compressor, PowerSGD):
        return PowerHook(compressor, processes)
    assert isinstance(compressor, Codec | ErrorFeedback | Adaptive)
    return CodecHook(compressor, carrier, processes, memory)


class CodecHook:
    """All-gather of encoded gradients.

    A bucket is encoded and sent off as soon as DDP has filled it, while the backward pass goes on.
    What has come from the others is waited for and decoded with the last one. All collectives are
    launched by the thread of the backward pass, in the order of the buckets, as those of BatchNorm
    are: any other way they could cross on another rank.
    """

    meets = True

    def __init__(
        self,
        compressor: Codec | ErrorFeedback | Adaptive,
        carrier: nn.Module,
        processes: Any,
        memory: Memory,
    ) -> None:
        self.names = {id(parameter): name for name, parameter in carrier.named_parameters()}
        self.tail = id(carrier.tail)
        self.gather = _AllGather(processes, carrier.tail.device)  # type: ignore[arg-type]
        rank, size = processes.rank(), processes.size()
        self.exchange = Exchange(compressor, rank, size, self.gather, memory)
        self._open: list[tuple[Any, torch.Tensor]] = []

    @property
    def traffic(self) -> Traffic:
        """What the last update cost."""
        return self.exchange.traffic

    def begin(self, signals: Signals, seed: int) -> None:
        """Choose the codec of an update."""
        self._open = []
        self.exchange.begin(signals, seed)

    def __call__(self, bucket: Any) -> Any:
        """Send a bucket; with the last one, receive all."""
        found = zip(bucket.parameters(), bucket.gradients(), strict=True)
        self.exchange.send(
            [
                Piece(self.names[id(p)], gradient, id(p) == self.tail or is_small(p))
                for p, gradient in found
            ]
        )
        future: Any = torch.futures.Future()
        self._open.append((future, bucket.buffer()))
        if bucket.is_last():
            self.exchange.receive()
            done, self._open = self._open, []
            for waiting, buffer in done:
                waiting.set_result(buffer)
        return future

    def meet(self, pieces: Sequence[Piece]) -> None:
        """Exchange gradients in one message, after the backward pass."""
        self.exchange.send(pieces)
        self.exchange.receive()

    def close(self) -> None:
        """Let go of the process group."""
        self.gather.processes = None
        self._open = []


@dataclass
class _AllGather:
    processes: Any
    device: torch.device

    def __call__(self, buffer: torch.Tensor) -> _Arriving:
        buffer = buffer.to(self.device)
        found = [torch.empty_like(buffer) for _ in range(self.processes.size())]
        return _Arriving(self.processes.allgather([found], [buffer]), found, buffer)


@dataclass
class _Arriving:
    work: Any
    found: list[torch.Tensor]
    buffer: torch.Tensor  # not to be freed while it is sent

    def wait(self) -> Sequence[torch.Tensor]:
        self.work.wait()
        return self.found


class PowerHook:
    """PyTorch's own PowerSGD.

    It is waited for bucket by bucket: its later all-reductions are launched by other threads, and
    would cross with those of the next bucket or of BatchNorm.
    """

    meets = False

    def __init__(self, settings: PowerSGD, processes: Any) -> None:
        self.traffic = Traffic()
        self.size = processes.size()
        self.state: Any = power.PowerSGDState(
            processes, settings.rank, start_powerSGD_iter=settings.start
        )
        self._bytes, self._seconds = 0, 0.0

    def begin(self, signals: Signals, seed: int) -> None:
        """Count from zero."""
        self._bytes, self._seconds = 0, 0.0

    def __call__(self, bucket: Any) -> Any:
        """Let PyTorch's hook do it; the tail is a vector, which it leaves as it is."""
        began = time.perf_counter()
        whole = self.state.iter < self.state.start_powerSGD_iter
        before = self.state.total_numel_after_compression
        future = power.powerSGD_hook(self.state, bucket)
        future.wait()
        buffer = bucket.buffer()
        after = self.state.total_numel_after_compression - before
        numbers = buffer.numel() if whole else after
        self._bytes += ring_bytes(numbers * buffer.itemsize, self.size)
        self._seconds += time.perf_counter() - began
        self.traffic = Traffic(self._bytes, self._seconds)
        return future

    def meet(self, pieces: Sequence[Piece]) -> None:
        """Never called: see `meets`."""
        raise AssertionError

    def close(self) -> None:
        """Let go of the process group."""
        self.state = None
