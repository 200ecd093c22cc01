"""Gathered outputs: every rank computes the loss of the whole batch.

For losses that couple rows. Each rank evaluates the module on its own rows; outputs and targets of
all ranks are gathered, and the loss is computed everywhere. A rank needs the gradient with respect
to its own outputs only, so nothing is sent in the backward pass but the gradients of parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from accelerando._engine.comm.communicator import LocalGradient
from accelerando._engine.comm.process_group import ProcessGroup
from accelerando._engine.data.feed import Batch, Shard, leaves, map_leaves
from accelerando._engine.micro_batch import weighted_loss
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.comm.ddp import DDPAllReduce
    from accelerando._engine.loop import Fit


class Rows:
    """The rows of a batch over the ranks.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    held : int
        Rows of this rank that count.
    start : int
        Position of the batch in the epoch's order, from which that of its rows follows.
    """

    def __init__(self, group: ProcessGroup, held: int, start: int) -> None:
        self.group, self.held = group, held
        rank, size = group.shard
        counts = torch.zeros(size, dtype=torch.int64, device=group.device)
        counts[rank] = held
        group.all_reduce(counts)
        self.counts: list[int] = counts.tolist()
        self.first = sum(self.counts[:rank])
        total = np.arange(sum(self.counts))
        places = [Shard(other, size).of(total, start) for other in range(size)]
        # Chunks of a Dask array have no common order: their rows stay in the order of the ranks.
        strided = [len(some) for some in places] == self.counts
        self.order = torch.from_numpy(np.argsort(np.concatenate(places))) if strided else None

    def gather(self, tree: Any, what: str) -> Any:
        """Return the rows of all ranks, in the order of the batch."""
        for leaf in leaves(tree):
            if (
                not isinstance(leaf, torch.Tensor)
                or leaf.dim() == 0
                or len(leaf) != max(1, self.held)
            ):
                shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise UnsupportedError(
                    f'couples_rows="gather" gathers rows, and the {what} must be tensors with one '
                    f"entry per row. Got {shape} for {max(1, self.held)} rows. Return such tensors "
                    "and compute what belongs to the whole batch in the criterion."
                )
        return map_leaves(self._gather_leaf, tree)

    def _gather_leaf(self, leaf: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Gather.apply(leaf[: self.held], self)  # type: ignore[no-untyped-call]
        return found if self.order is None else found[self.order.to(found.device)]


class _Gather(torch.autograd.Function):
    """All rows. The gradient is that of this rank's rows, times the number of ranks.

    Every rank backpropagates one over the number of ranks of the same loss.
    """

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, rows: Rows) -> torch.Tensor:
        ctx.rows = rows
        group, longest = rows.group, max(rows.counts)
        padded = mine.new_zeros((longest, *mine.shape[1:]))
        padded[: len(mine)] = mine.detach()
        sent = padded.reshape(-1).view(torch.uint8).to(group.device)
        found = [torch.empty_like(sent) for _ in rows.counts]
        with group.contact():
            group.processes.allgather([found], [sent]).wait()
        parts = [one.to(mine.device).view(mine.dtype).view(padded.shape) for one in found]
        return torch.cat([part[:count] for part, count in zip(parts, rows.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = ctx.rows
        mine = gradient[rows.first : rows.first + rows.held]
        return mine * float(len(rows.counts)), None


def accumulate_gathered(
    fit: Fit, batch: Batch, X: Any, y: Any, weights: torch.Tensor | None
) -> LocalGradient:
    """Add the gradient of the whole batch's loss with respect to this rank's rows to ``.grad``."""
    model = fit.model
    comm: DDPAllReduce = fit.comm  # type: ignore[assignment]
    y_pred = model.forward(X, comm.module(model.module))
    rows = Rows(comm.group, batch.held, fit.state.position.cursor)
    all_pred, all_y = rows.gather(y_pred, "outputs of the module"), rows.gather(y, "targets")
    all_X = rows.gather(X, "inputs") if model.loss_reads_inputs else X
    if weights is None:
        loss = model.loss(all_pred, all_y, all_X)
    else:
        every = rows.gather(weights, "weights")
        loss = weighted_loss(
            model.criterion, lambda: model.loss(all_pred, all_y, all_X), all_y, every, batch.size
        )
    share = 1.0 / comm.shard.size
    loss = loss * share
    comm.backward(loss, 0.0 if fit.spec.sums else share, last=True)
    return LocalGradient([loss.detach()], y_pred)
