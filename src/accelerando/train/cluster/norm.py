"""BatchNorm over the whole batch, wherever its rows are.

With the statistics of a rank's own rows the result would depend on the number of ranks. PyTorch's
``SyncBatchNorm`` wants GPUs and a registered process group; this works on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_BatchNorm = nn.modules.batchnorm._BatchNorm


class Statistics:
    """Sums over the ranks, and whether this rank's rows count."""

    def __init__(self, processes: Any) -> None:
        self.processes = processes
        self.counts = True

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Add up over the ranks."""
        values = values.contiguous()
        self.processes.allreduce([values]).wait()
        return values


class _Sum(torch.autograd.Function):
    """A sum over ranks whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, statistics: Statistics) -> torch.Tensor:
        ctx.statistics = statistics
        return statistics.total(values.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.statistics.total(gradient.clone()), None


def synchronized(module: nn.Module, statistics: Statistics) -> Callable[[], None]:
    """Let every BatchNorm in the module use the statistics of all ranks; return the way back."""
    layers = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    for layer in layers:
        vars(layer)["forward"] = _Forward(layer, statistics)

    def undo() -> None:
        for layer in layers:
            vars(layer).pop("forward", None)

    return undo


class _Forward:
    def __init__(self, layer: Any, statistics: Statistics) -> None:
        self.layer = layer
        self.statistics = statistics

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if not layer.training:
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
        layer._check_input_dim(x)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        rows = float(x.numel() // x.shape[1]) if self.statistics.counts else 0.0
        weight = 1.0 if self.statistics.counts else 0.0
        # Centred on the running mean, sums of squares lose no digits.
        centre = (
            torch.zeros_like(x[0:1].mean(axes))
            if layer.running_mean is None
            else (layer.running_mean.detach().clone())
        )
        shifted = x - centre.view(shape)
        sums = torch.cat(
            [
                shifted.sum(axes) * weight,
                (shifted * shifted).sum(axes) * weight,
                torch.full((1,), rows, dtype=x.dtype, device=x.device),
            ]
        )
        sums = _Sum.apply(sums, self.statistics)  # type: ignore[no-untyped-call]
        count = sums[-1].detach()
        mean, square = (sums[:-1] / count).chunk(2)
        variance = square - mean * mean
        self._remember(mean.detach() + centre, variance.detach(), float(count))
        scaled: torch.Tensor = (shifted - mean.view(shape)) * torch.rsqrt(
            variance + layer.eps
        ).view(shape)
        if layer.affine:
            scaled = scaled * layer.weight.view(shape) + layer.bias.view(shape)
        return scaled

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        layer = self.layer
        if layer.running_mean is None:
            return
        with torch.no_grad():
            layer.num_batches_tracked.add_(1)
            factor = layer.momentum
            if factor is None:
                factor = 1.0 / float(layer.num_batches_tracked)
            layer.running_mean.lerp_(mean, factor)
            layer.running_var.lerp_(variance * (count / max(1.0, count - 1.0)), factor)
