"""The ranks that train one model together, as the loop sees them.

The loop asks the world four things: which rows are mine, do this backward pass, add these numbers
up over all ranks, and what did the update agree on. Alone, the answers are trivial; in a
:class:`~accelerando.train.cluster.group.Group` they go through ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from accelerando.train.feed import WHOLE, Part
from accelerando.train.parts import Parts


class Traffic(NamedTuple):
    """What an update cost in communication.

    Attributes
    ----------
    bytes : int
        Sent by all ranks together.
    seconds : float
        For which this rank waited.
    encoding, decoding : float
        Seconds that this rank spent on compression.
    """

    bytes: int = 0
    seconds: float = 0.0
    encoding: float = 0.0
    decoding: float = 0.0


def seed_of(seed: int, update: int, rank: int) -> int:
    """Return what dropout draws from: it depends on these three, not on what happened before."""
    return ((seed * 1_000_003 + update) * 1_009 + rank) % 2**63


class World(Protocol):
    """What the loop needs to know about the other ranks."""

    part: Part
    alone: bool  # an update's gradient is that of this rank's own rows
    traffic: Traffic
    parts: Parts | None
    fingerprint: float

    def timed(self, seconds: float) -> tuple[float, float]:
        """Take in what an update took; return what one takes and waits, the mean of the ranks."""

    def forward(self, net: Any, X: Any, fit_params: Any, *, plain: bool) -> Any:
        """Call the module, through ``infer`` unless that would only pass `X` on."""

    def passing(self, *, last: bool) -> AbstractContextManager[object]:
        """Surround one micro-batch; gradients travel in the backward pass of the last one."""

    def backward(self, loss: torch.Tensor, share: float, *, last: bool) -> None:
        """Add the gradients of one micro-batch that has this share of the batch's mass."""

    def agree(self, losses: list[torch.Tensor], parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the loss of the whole batch, after the last micro-batch.

        Until here the mass of a batch counts as its rows; afterwards gradients are divided by the
        true one.
        """

    def total(self, *numbers: float) -> list[float]:
        """Add numbers up over the ranks."""

    def total_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Add up the gradients in ``.grad`` over the ranks."""

    def add_up(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()) -> list[float]:
        """Add tensors up over the ranks, in place, and return the sums of the numbers."""

    def begin_update(self, seed: int, update: int, held: int) -> None:
        """Prepare one update in which this rank holds so many rows."""


class Alone:
    """A single rank, in this process."""

    part = WHOLE
    alone = True
    traffic = Traffic()
    parts: Parts | None = None
    fingerprint = 0.0
    _nothing = nullcontext()

    def timed(self, seconds: float) -> tuple[float, float]:
        return seconds, 0.0

    def forward(self, net: Any, X: Any, fit_params: Any, *, plain: bool) -> Any:
        return net.module_(X) if plain else net.infer(X, **fit_params)

    def passing(self, *, last: bool) -> AbstractContextManager[object]:
        return self._nothing

    def backward(self, loss: torch.Tensor, share: float, *, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def agree(self, losses: list[torch.Tensor], parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(losses).sum()

    def total(self, *numbers: float) -> list[float]:
        return list(numbers)

    def total_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        return None

    def add_up(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()) -> list[float]:
        return list(numbers)

    def begin_update(self, seed: int, update: int, held: int) -> None:
        return None
