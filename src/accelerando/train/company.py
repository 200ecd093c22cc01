"""The ranks that train a model together in one process, and what is asked of any that average."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from accelerando.exceptions import UnsupportedError
from accelerando.sync import ring_bytes
from accelerando.train.feed import Batch
from accelerando.train.tree import map_leaves, only_tensors
from accelerando.train.world import Alone, Traffic, World, seed_of


class Company(World, Protocol):
    """The world of ranks that step alone and meet now and then."""

    rank: int  # the one whose step it is
    scale: float
    seeded: bool
    switching: bool  # other ranks are to go on from the average of these

    def ask(
        self, numbers: Sequence[float], tensors: Sequence[torch.Tensor] = ()
    ) -> Callable[[], list[float]]:
        """Begin to add numbers up over the processes; what is returned waits for the sums.

        Tensors are added up in place, in the same message. Processes agree in it on whatever else
        they have to agree on.
        """

    def spent(self) -> Traffic:
        """Return what asking has cost, and the time waited for others, since it was asked."""

    def lost(self, error: RuntimeError) -> bool:
        """Tell whether an error means that a rank is gone; then training ends after this update."""


class VirtualRank(Alone):
    """The company of ranks that are all in this process.

    Every row counts the same: a rank with one row more than the others, at the end of an epoch,
    takes a step that is longer by as much. With a period of 1 the average is then the gradient
    of the whole batch.
    """

    switching = False

    def __init__(self) -> None:
        self.rank = 0
        self.scale = 1.0
        self.traffic = Traffic()
        self.seeded = False

    def begin_update(self, seed: int, update: int, held: int) -> None:
        """Make dropout depend on the seed, the update and the rank, as ranks of a cluster do."""
        if self.seeded:
            torch.manual_seed(seed_of(seed, update, self.rank))

    def backward(self, loss: torch.Tensor, share: float, *, last: bool) -> None:
        """Go back with the weight of this rank's rows."""
        super().backward(loss if self.scale == 1.0 else loss * self.scale, share, last=last)

    def ask(
        self, numbers: Sequence[float], tensors: Sequence[torch.Tensor] = ()
    ) -> Callable[[], list[float]]:
        return lambda: list(numbers)

    def spent(self) -> Traffic:
        return Traffic()

    def lost(self, error: RuntimeError) -> bool:
        return False


class AllReduceHere(Alone):
    """Virtual ranks that average gradients: one process computes what they would agree on."""

    def __init__(self, net: Any, ranks: int) -> None:
        size = sum(p.nbytes for _, p in net.get_all_learnable_params() if p.requires_grad)
        self.traffic = Traffic(ring_bytes(size, ranks))


class Share(NamedTuple):
    """One rank's rows of a batch, and where in the batch they stand."""

    batch: Batch
    places: torch.Tensor


def shares(batch: Batch, ranks: int, cursor: int) -> Iterator[Share]:
    """Divide a batch as ranks of a cluster would: each takes every `ranks`-th row of the epoch.

    Parameters
    ----------
    batch : Batch
        Of all ranks.
    ranks : int
        How many there are.
    cursor : int
        The number of its first row in the epoch.
    """
    if not only_tensors(batch.data):
        raise UnsupportedError(
            "virtual_ranks divides every batch into those of its ranks, and this one holds "
            "something else than tensors with rows. Let the data set yield tensors or arrays."
        )
    for rank in range(ranks):
        places = torch.arange((rank - cursor) % ranks, batch.size, ranks)
        data = map_leaves(taking(places), batch.data)
        rows = None if batch.rows is None else batch.rows[places.numpy()]
        yield Share(Batch(data, len(places), rows, len(places)), places)


def taking(places: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what takes the rows at these places from a tensor."""
    return lambda leaf: leaf.index_select(0, places.to(leaf.device))
