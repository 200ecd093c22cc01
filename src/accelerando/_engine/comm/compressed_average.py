"""Compressed averaging: ranks exchange encoded differences from what they last agreed on.

A strategy says when ranks average and by what rule; a codec says how the exchanged tensors travel.
Every rank encodes the difference of its replica from a model that all ranks know: the last average,
or the central model. All ranks decode the same messages in the same order, so that they agree bit
for bit on the mean difference, to which the rule of the strategy applies. Error feedback has one
memory for each replica, which is a part of the saved state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from accelerando._engine._torch import Tensors, foreach_add_, foreach_sub_
from accelerando._engine.comm.average import MeanWaiter
from accelerando._engine.comm.communicator import Traffic
from accelerando._engine.comm.compressed import AllToAll
from accelerando._engine.comm.exchange import Arrival, Exchange, exchange_here, is_small
from accelerando._engine.comm.process_group import ProcessGroup
from accelerando._engine.comm.shards import Piece
from accelerando.compress import Adaptive, Codec, ErrorFeedback

if TYPE_CHECKING:
    from accelerando._engine.comm.members import Members
    from accelerando._engine.comm.replicas import ReplicaSet
    from accelerando._engine.state import TrainState
    from accelerando.compress import Compressor


class CompressedExchange:
    """Exchange encoded differences from the parameters that all ranks know.

    Statistics of BatchNorm and small tensors travel as they are.

    Parameters
    ----------
    compressor : Codec, ErrorFeedback or Adaptive
        How differences are encoded.
    members : Members
        The processes: a process group with one replica in each, or virtual ranks.
    """

    def __init__(self, compressor: Compressor, members: Members) -> None:
        assert isinstance(compressor, Codec | ErrorFeedback | Adaptive)  # others are refused before
        self.members = members
        rank, size = members.shard.rank * members.here, members.shard.size * members.here
        send = AllToAll(members, members.device) if isinstance(members, ProcessGroup) else _nowhere
        self._exchanges = [
            Exchange(compressor, rank + number, size, send, {}) for number in range(members.here)
        ]
        self._traffic = Traffic()

    def begin(self, state: TrainState) -> None:
        values = state.values()
        for exchange in self._exchanges:
            exchange.begin(values, state.seed)

    def start(
        self, replicas: ReplicaSet, positions: Sequence[Tensors], numbers: Sequence[float]
    ) -> MeanWaiter:
        agreed = replicas.agreed
        differences = [[one.clone() for one in position] for position in positions]
        for one in differences:
            foreach_sub_(one[: len(agreed)], agreed)
        pieces = [_pieces(replicas, one) for one in differences]
        # Whatever the replicas were when the fit began: they may have been restored since.
        for exchange, memory in zip(self._exchanges, replicas.memories, strict=True):
            exchange.feedback.memory = memory
        wait_for_numbers = self.members.start_exchange(numbers)
        exchange = self._exchanges[0]
        receive: Callable[[], None]
        if isinstance(self.members, ProcessGroup):
            exchange.send(pieces[0])
            receive = exchange.receive
        else:
            exchange_here(self._exchanges, pieces)
            receive = _nothing

        def wait() -> tuple[list[float], Tensors]:
            found = wait_for_numbers()
            receive()
            self._traffic = self._traffic.plus(exchange.traffic)
            means = differences[0]
            foreach_add_(means[: len(agreed)], agreed)
            return found, means

        return wait

    def take_traffic(self) -> Traffic:
        traffic, self._traffic = self._traffic, Traffic()
        return traffic


def _pieces(replicas: ReplicaSet, flat: Tensors) -> list[Piece]:
    """Return views of flat tensors, which the exchange replaces by their means."""
    parts = zip(replicas.flat.numbers, replicas.flat.unflatten(flat), strict=True)
    return [
        # The position, not the name: the criterion's parameters may be named like the module's.
        Piece(str(number), part, is_small(part) or not replicas.is_parameter(number))
        for number, part in parts
    ]


def _nothing() -> None:
    return None


def _nowhere(buffers: Sequence[torch.Tensor], lengths: Sequence[int]) -> Arrival:
    raise AssertionError("virtual ranks send nothing")
