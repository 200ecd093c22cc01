"""The tail: numbers that travel with DDP's gradients, as the gradient of one more parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accelerando._engine._torch import after_backward


class Carrier(nn.Module):
    """The module, the criterion (it may have parameters, too) and the tail.

    The attribute names are part of the parameters' names, which seed the draws of codecs and are
    the keys of error feedback: do not rename them.
    """

    def __init__(self, module: nn.Module, criterion: Any, numbers: int) -> None:
        super().__init__()
        self.module = module
        self.criterion = criterion if isinstance(criterion, nn.Module) else None
        # A float64 tail in a float32 model would open a second bucket; a float32 tail in a float64
        # model would lose digits of the loss.
        dtypes = {p.dtype for p in self.parameters() if p.requires_grad}
        dtype = torch.float64 if dtypes == {torch.float64} else torch.float32
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        self.tail = nn.Parameter(torch.zeros(numbers, dtype=dtype, device=device))
        self.entered = False  # whether DDP has called the module in this micro-batch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.entered = True
        return self.module(*args, **kwargs)


class TailLoss(torch.autograd.Function):
    """``tail · numbers``, with an edge to every parameter, along which no gradient flows.

    Without a gradient nothing is added to ``.grad``, but DDP's hook fires.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tail: torch.Tensor,
        numbers: torch.Tensor,
        look: Callable[[], None],
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.look, ctx.count = look, len(parameters)
        ctx.save_for_backward(numbers)
        return tail.dot(numbers)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        after_backward(ctx.look)  # before DDP gives the missing gradients their zeros
        (numbers,) = ctx.saved_tensors
        return gradient * numbers, None, None, *[None] * ctx.count
