"""Members: the processes whose replicas are averaged, and the rows of each replica.

:class:`VirtualGroup` is one process with several replicas. Ranks of a cluster form a
:class:`~accelerando._engine.comm.process_group.ProcessGroup`, in which each has one replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from accelerando._engine._torch import Tensors, foreach_div_
from accelerando._engine.comm.average import MeanWaiter, Summing, Waiter, n_ranks, sum_positions
from accelerando._engine.comm.communicator import (
    Traffic,
    UpdateResult,
    all_reduce_bytes,
    dropout_seed,
)
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.data.feed import WHOLE, Batch, concatenate, map_leaves, only_tensors
from accelerando._engine.runtime.process import UpdateSeeds
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.state import TrainState


class Members(Summing, Protocol):
    """The processes whose replicas are averaged.

    Attributes
    ----------
    switching : bool
        Whether all processes know that other ranks continue after this update.
    fingerprint : float
        Of the plan of this process; a group of several processes compares them.
    """

    switching: bool
    fingerprint: float

    def seed_dropout(self, seed: int, update: int, replica: int, *, seeded: bool) -> None:
        """Make dropout depend on the seed, the update and the rank of one replica here."""

    def start_exchange(
        self, numbers: Sequence[float], tensors: Sequence[torch.Tensor] = ()
    ) -> Waiter:
        """Start to sum numbers and, in place, tensors over the processes.

        Processes use the same message to agree on a pause, on the clocks and on their plans.
        """

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Add up the gradients in ``.grad`` over the processes."""

    def mean_seconds(self, seconds: float, waited: float) -> tuple[float, float]:
        """Return the mean duration and the mean waiting time of an update over the processes."""

    def take_traffic(self) -> Traffic:
        """Return the bytes of the numbers and the waiting time since the last call."""

    def is_lost(self, error: RuntimeError) -> bool:
        """Return True if an error means that a rank is gone; training ends after this update."""

    def close(self) -> None:
        """Release the process group."""


class VirtualGroup:
    """Virtual ranks, which are all in this process.

    Parameters
    ----------
    ranks : int
        Number of virtual ranks.
    """

    shard = WHOLE
    switching = False

    def __init__(self, ranks: int) -> None:
        self.here = ranks
        self._seed = UpdateSeeds()
        self.fingerprint = 0.0

    def seed_dropout(self, seed: int, update: int, replica: int, *, seeded: bool) -> None:
        # An unseeded run follows torch.manual_seed, as one process does.
        if seeded:
            self._seed(dropout_seed(seed, update, replica))

    def sum(self, *numbers: float) -> list[float]:
        return list(numbers)

    def sum_tensors(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()
    ) -> list[float]:
        return list(numbers)

    def start_exchange(
        self, numbers: Sequence[float], tensors: Sequence[torch.Tensor] = ()
    ) -> Waiter:
        return lambda: list(numbers)

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        return None

    def mean_seconds(self, seconds: float, waited: float) -> tuple[float, float]:
        return seconds, 0.0

    def take_traffic(self) -> Traffic:
        return Traffic()

    def is_lost(self, error: RuntimeError) -> bool:
        return False

    def close(self) -> None:
        return None


class PlainExchange:
    """Positions travel as they are, in the message that also carries what processes agree on."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._bytes = 0

    def begin(self, state: TrainState) -> None:
        return None

    def start(
        self, replicas: ReplicaSet, positions: Sequence[Tensors], numbers: Sequence[float]
    ) -> MeanWaiter:
        sums = sum_positions(positions)
        wait = self._start(sums, numbers)
        ranks = n_ranks(self.members)
        self._bytes += all_reduce_bytes(replicas.n_bytes, ranks)

        def wait_for_means() -> tuple[list[float], Tensors]:
            found = wait()
            foreach_div_(sums, ranks)
            return found, sums

        return wait_for_means

    def _start(self, sums: Tensors, numbers: Sequence[float]) -> Waiter:
        return self.members.start_exchange(numbers, sums)

    def take_traffic(self) -> Traffic:
        sent, self._bytes = self._bytes, 0
        return Traffic(sent)


class SilentExchange(PlainExchange):
    """Positions travel without anything else: replicas are watched, and nothing is agreed on."""

    def _start(self, sums: Tensors, numbers: Sequence[float]) -> Waiter:
        return partial(self.members.sum_tensors, sums, numbers)


def divide(batch: Batch, replicas: int, cursor: int) -> Iterator[tuple[Batch, torch.Tensor]]:
    """Divide this process's rows of a batch among its replicas, as ranks of a cluster would.

    Each takes every `replicas`-th row of the epoch.

    Parameters
    ----------
    batch : Batch
        The rows of this process.
    replicas : int
        Number of replicas.
    cursor : int
        Position of the first row in the epoch.

    Yields
    ------
    batch : Batch
        The rows of one replica.
    places : Tensor
        Their positions in the batch.
    """
    if replicas == 1:
        yield batch._replace(size=batch.held), torch.arange(batch.held)
        return
    if not only_tensors(batch.data):
        raise UnsupportedError(
            "virtual_ranks divides every batch into those of its ranks, and this one holds "
            "something else than tensors with rows. Let the data set yield tensors or arrays."
        )
    for replica in range(replicas):
        start = min((replica - cursor) % replicas, batch.size)
        places = torch.arange(start, batch.size, replicas)
        data = map_leaves(_taking(places), batch.data)
        rows = None if batch.rows is None else batch.rows[places.numpy()]
        yield Batch(data, len(places), rows, len(places)), places


def in_order(results: Sequence[UpdateResult], places: Sequence[torch.Tensor]) -> Any:
    """Return the predictions of all replicas in the order of the batch's rows."""
    predictions = [result.outputs["y_pred"] for result in results]
    if not predictions or not only_tensors(predictions):
        return predictions
    order = torch.argsort(torch.cat(list(places)))
    return map_leaves(_taking(order), concatenate(predictions))


def _taking(places: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda leaf: leaf.index_select(0, places.to(leaf.device))
