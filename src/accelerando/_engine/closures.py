"""Closures: the loss and the gradient as a function, for optimizers that evaluate it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelerando._engine.runtime.process import Draws

if TYPE_CHECKING:
    from accelerando._engine.model import Model


def offered(
    model: Model, gradient: Callable[[], torch.Tensor], loss: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Return the closure for optimizers of other libraries, such as SAM.

    The gradient of the batch exists already, and `loss` is its loss. The closure computes both
    again if the optimizer has moved a parameter, or touched a gradient, since then.
    """
    parameters = model.parameters
    before = [p.detach().clone() for p in parameters]
    gradients = [(p.grad, -1 if p.grad is None else p.grad._version) for p in parameters]

    def closure() -> torch.Tensor:
        same = all(
            p.grad is g and (g is None or g._version == version) and torch.equal(p.detach(), value)
            for p, (g, version), value in zip(parameters, gradients, before, strict=True)
        )
        with torch.enable_grad():
            return loss if same else gradient()

    return closure


def outside(draws: Draws, closure: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return a closure whose dropout draws as that of the gradient before."""

    def call() -> torch.Tensor:
        with draws.outside():
            return closure()

    return call
