"""The communicator: what the training loop asks of the other ranks.

The loop never asks which communicator it has. :class:`SingleProcess` answers every question
trivially; DDP all-reduce, compressed all-reduce and local SGD are its siblings in this package.
Three operations are the core: :meth:`Communicator.reduce` agrees on the gradient of an update,
:meth:`Communicator.after_step` agrees on what the update yielded (and averages parameters if it is
time), and :meth:`Communicator.sum` adds numbers up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from accelerando._engine.data.feed import WHOLE, Batch, Shard
from accelerando._engine.runtime.process import UpdateSeeds

if TYPE_CHECKING:
    from accelerando._decisions import Plan
    from accelerando._engine.row_norms import RowNorms
    from accelerando._engine.state import TrainState


class Traffic(NamedTuple):
    """Communication cost of an update.

    Attributes
    ----------
    bytes : int
        Sent by all ranks.
    wait_seconds : float
        Time that this rank waited for messages.
    encode_seconds, decode_seconds : float
        Time that this rank spent on compression.
    """

    bytes: int = 0
    wait_seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    def plus(self, other: Traffic) -> Traffic:
        """Return the sum of two costs."""
        return Traffic(
            self.bytes + other.bytes,
            self.wait_seconds + other.wait_seconds,
            self.encode_seconds + other.encode_seconds,
            self.decode_seconds + other.decode_seconds,
        )


class PartNorms(NamedTuple):
    """Gradient norms of the parts of a batch, from which noise is estimated.

    Attributes
    ----------
    number : int
        Parts with rows that count: rows, micro-batches or ranks.
    square : float
        Mean of the squared norms of the parts' mean gradients, weighted by their mass. If the loss
        is a sum over rows, the division by the rows of the batch is left to the loop.
    """

    number: int
    square: float


class LocalGradient(NamedTuple):
    """Results of the forward and backward passes of this process, next to ``.grad``.

    Attributes
    ----------
    losses : list of Tensor
        The share of each micro-batch in the loss of the batch.
    y_pred : object
        The predictions for the rows of this process.
    noise : PartNorms or None
        Gradient norms of the micro-batches, if they were measured.
    """

    losses: list[torch.Tensor]
    y_pred: Any
    noise: PartNorms | None = None


class Gradient(NamedTuple):
    """The agreed result of a gradient computation; the gradient itself is in ``.grad``."""

    loss: torch.Tensor
    y_pred: Any
    noise: PartNorms | None = None


class UpdateResult(NamedTuple):
    """Results of one update.

    Attributes
    ----------
    loss, grad_norm : float
        Of the global batch.
    lr : float
        The learning rate of the step, damping included.
    outputs : dict
        What callbacks receive: ``loss`` and ``y_pred``.
    noise : PartNorms or None
        Gradient norms of the parts of the batch.
    """

    loss: float
    grad_norm: float
    lr: float
    outputs: dict[str, Any]
    noise: PartNorms | None = None


class LocalBatch(NamedTuple):
    """The rows of one replica of this process, and the context that makes its parameters current.

    Attributes
    ----------
    batch : Batch
        What the replica trains on.
    parameters : callable
        Returns a context inside which the module and the optimizers hold this replica's tensors.
    """

    batch: Batch
    parameters: Callable[[], AbstractContextManager[object]]


class Communicator(Protocol):
    """Protocol between the loop and the ranks of a run.

    Attributes
    ----------
    shard : Shard
        This process among the processes.
    ranks : int
        Ranks of the run, virtual ones included.
    batches_per_update : int
        Batches of the decided size in one update: 1 where ranks share a batch, the number of ranks
        where each has its own.
    alone : bool
        Whether a gradient depends on the rows of this process only; micro-batches may then be
        compared with each other.
    traffic : Traffic
        What the newest update cost.
    spread : float or None
        Mean squared distance of the replicas from their average, if the newest update measured it.
    """

    shard: Shard
    ranks: int
    batches_per_update: int
    alone: bool
    traffic: Traffic
    spread: float | None

    def follow(self, *, sums: bool, min_rows: int) -> None:
        """Note whether the loss is a sum over rows, and how many rows BatchNorm needs."""

    def begin_epoch(self, state: TrainState) -> None:
        """Create, restore or drop replicas. Called when an epoch begins or continues."""

    def period(self, state: TrainState, rows: int) -> float:
        """Return the strategy's averaging period for an update of `rows` rows; nan without one."""

    def begin_update(self, state: TrainState, plan: Plan, batch: Batch) -> None:
        """Prepare an update: seed dropout, choose the codec, start an overlapping exchange."""

    def look_at_rows(self, norms: RowNorms) -> None:
        """Compare the gradients of rows in this update, instead of those of ranks."""

    def local_batches(self, state: TrainState, batch: Batch) -> Iterable[LocalBatch]:
        """Return what each replica of this process trains on."""

    def module(self, module: torch.nn.Module) -> Callable[..., Any]:
        """Return what the forward pass calls: the module, or DDP around it."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """Surround one micro-batch. Gradients are sent in the backward pass of the last one."""

    def backward(self, loss: torch.Tensor, mass: float, *, last: bool) -> None:
        """Add the gradient of one micro-batch with this share of the batch's mass."""

    def reduce(self, local: LocalGradient, parameters: Sequence[torch.Tensor]) -> Gradient:
        """Wait for the gradients that ``backward`` started to send; return the agreed result.

        Until here the mass of a batch counts as its rows. Afterwards ``.grad`` is divided by the
        true mass, which class weights and ignored targets change.
        """

    def drop_unused(self, zeros: Sequence[torch.Tensor]) -> None:
        """Let ``.grad`` be None again for those of the parameters that no rank has used.

        `zeros` are the parameters whose reduced gradient is zero, the same ones on all ranks.
        Optimizers with a memory tell a gradient of zero from none at all.
        """

    def abandon_update(self, state: TrainState) -> None:
        """Drop what is in flight, and replicas of which some have stepped and others have not."""

    def after_step(
        self, state: TrainState, plan: Plan, results: Sequence[UpdateResult]
    ) -> UpdateResult:
        """Average parameters if it is time, and agree on what the update yielded."""

    def sum(self, *numbers: float) -> list[float]:
        """Return the sums of the numbers over the processes."""

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Add up the gradients in ``.grad`` over the processes."""

    def mean_seconds(self, seconds: float) -> tuple[float, float]:
        """Return the mean duration and the mean waiting time of an update over the ranks."""

    def row(self, state: TrainState) -> tuple[float, ...]:
        """Return this communicator's columns of the updates table."""

    def show(self, state: TrainState) -> None:
        """Let the module hold the model that the estimator would return now."""

    def flush(self, state: TrainState) -> None:
        """Finish what is in flight and exchange numbers not yet exchanged. Collective."""

    def end_epoch(self, state: TrainState) -> None:
        """Flush, then show the averaged model. Collective."""

    def close(self) -> None:
        """Release the process group now."""


class SingleProcess:
    """One rank, in this process."""

    shard = WHOLE
    ranks = 1
    batches_per_update = 1
    alone = True
    spread: float | None = None
    _nothing = nullcontext()

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._seed = UpdateSeeds()

    def follow(self, *, sums: bool, min_rows: int) -> None:
        return None

    def begin_epoch(self, state: TrainState) -> None:
        state.drop_replicas()

    def period(self, state: TrainState, rows: int) -> float:
        return float("nan")

    def begin_update(self, state: TrainState, plan: Plan, batch: Batch) -> None:
        if state.seeded:  # another run follows torch.manual_seed
            self._seed(dropout_seed(state.seed, state.position.update, 0))

    def look_at_rows(self, norms: RowNorms) -> None:
        return None

    def local_batches(self, state: TrainState, batch: Batch) -> Iterable[LocalBatch]:
        return (LocalBatch(batch, self._no_switch),)

    def _no_switch(self) -> AbstractContextManager[object]:
        return self._nothing

    def module(self, module: torch.nn.Module) -> Callable[..., Any]:
        return module

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        return self._nothing

    def backward(self, loss: torch.Tensor, mass: float, *, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def reduce(self, local: LocalGradient, parameters: Sequence[torch.Tensor]) -> Gradient:
        losses = local.losses
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        return Gradient(loss, local.y_pred, local.noise)

    def drop_unused(self, zeros: Sequence[torch.Tensor]) -> None:
        return None

    def abandon_update(self, state: TrainState) -> None:
        return None

    def after_step(
        self, state: TrainState, plan: Plan, results: Sequence[UpdateResult]
    ) -> UpdateResult:
        return results[0]

    def sum(self, *numbers: float) -> list[float]:
        return list(numbers)

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        return None

    def mean_seconds(self, seconds: float) -> tuple[float, float]:
        return seconds, 0.0

    def row(self, state: TrainState) -> tuple[float, ...]:
        return ()

    def show(self, state: TrainState) -> None:
        return None

    def flush(self, state: TrainState) -> None:
        return None

    def end_epoch(self, state: TrainState) -> None:
        return None

    def close(self) -> None:
        return None


class VirtualAllReduce(SingleProcess):
    """Virtual ranks that average gradients: one process computes what they would agree on.

    Parameters
    ----------
    ranks : int
        Virtual ranks, each with a batch of the decided size.
    n_bytes : int
        Bytes of all gradients, from which the traffic of real ranks follows.
    """

    def __init__(self, ranks: int, n_bytes: int) -> None:
        super().__init__()
        self.ranks = self.batches_per_update = ranks
        self.traffic = Traffic(all_reduce_bytes(n_bytes, ranks))


def all_reduce_bytes(n_bytes: int, ranks: int) -> int:
    r"""Return the bytes that all ranks send to all-reduce a message of `n_bytes` bytes in a ring.

    Each of :math:`n` ranks sends :math:`2 (n - 1) / n` of it (Patarasuk and Yuan 2009), all of
    them :math:`2 (n - 1)` times the message.

    Examples
    --------
    >>> all_reduce_bytes(4 * 1000, ranks=16)
    120000
    """
    return 2 * (ranks - 1) * n_bytes


def dropout_seed(seed: int, update: int, rank: int) -> int:
    """Return the seed of dropout for one update on one rank.

    It depends on these three numbers only, so that an update that is repeated after a lost rank
    draws the same masks.
    """
    return ((seed * 1_000_003 + update) * 1_009 + rank) % 2**63
