"""The gradients of the parts of a batch, looked at one by one on a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Parts(NamedTuple):
    """What the parts of a batch tell about its noise.

    Attributes
    ----------
    number : int
        Parts with rows that count.
    square : float
        Sum of the squared norms of the parts' gradients, each divided by the part's mass, divided
        by the mass of the batch: the mean squared norm of their mean gradients. Where the loss is
        a sum over rows, a mass is a number of rows, and the last division is left to the loop.
    """

    number: int
    square: float


class Tally:
    """Measure the gradient of each micro-batch by taking those of earlier ones away meanwhile."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self.earlier: list[torch.Tensor | None] = [None] * len(parameters)
        self.number, self.square, self.mass = 0, 0.0, 0.0

    def note(self, squared_norm: float, mass: float) -> None:
        """Take in the squared norm of one part's gradient."""
        if mass > 0.0:
            self.number += 1
            self.square += squared_norm / mass
            self.mass += mass

    def set_aside(self) -> None:
        """Keep what is in ``.grad`` for later, and clear it for the next part."""
        for number, parameter in enumerate(self.parameters):
            self.earlier[number] = _sum(self.earlier[number], parameter.grad)
            parameter.grad = None

    def bring_back(self) -> None:
        """Add what was set aside to the gradient of the last part."""
        for parameter, earlier in zip(self.parameters, self.earlier, strict=True):
            # Into the tensor that is there: a rank of a group may have views into its buckets.
            parameter.grad = _sum(parameter.grad, earlier)

    def parts(self, *, sums: bool) -> Parts:
        """Return what all parts together tell."""
        return Parts(self.number, self.square if sums else self.square / max(self.mass, 1e-300))


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second if first.is_sparse or second.is_sparse else first.add_(second)
