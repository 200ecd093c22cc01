"""Synchronized BatchNorm: statistics of the global batch, whichever rank its rows are on.

With the statistics of a rank's rows alone, the result would depend on the number of ranks.
PyTorch's ``SyncBatchNorm`` needs GPUs and a registered process group; this one works on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accelerando._engine._torch import batch_norm_class, check_batch_norm_input
from accelerando._engine.comm.process_group import ProcessGroup
from accelerando.exceptions import UnsupportedError


class BatchStatistics:
    """Sums over the ranks, and whether this rank's rows count.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.counts = True  # False while this rank has no row and only fills in

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks; `values` may be overwritten."""
        values = values.contiguous()
        self.group.all_reduce(values)
        return values

    def agree_on(self, layer: int) -> None:
        """Raise if ranks are about to call different layers; 0 is the end of the forward pass.

        The message has one length for all layers. Without it ranks that skip different layers
        would wait for each other.
        """
        size = self.group.shard.size
        if size == 1:
            return
        sums = self.group.sum(float(layer), float(layer * layer))
        if sums != [size * layer, size * layer * layer]:
            raise UnsupportedError(
                "Ranks have skipped different layers with BatchNorm in one update, whose "
                "statistics are those of all ranks. Use GroupNorm or LayerNorm in layers that are "
                "skipped now and then, or train on one rank (max_workers=1)."
            )


class _Sum(torch.autograd.Function):
    """A sum over ranks. Its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, statistics: BatchStatistics) -> torch.Tensor:
        ctx.statistics = statistics
        return statistics.sum(values.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.statistics.sum(gradient.clone()), None


def synchronize(module: nn.Module, statistics: BatchStatistics) -> Callable[[], None]:
    """Let every BatchNorm layer use the statistics of all ranks; return a function that undoes it.

    Parameters
    ----------
    module : torch.nn.Module
        With any number of BatchNorm layers.
    statistics : BatchStatistics
        Shared by all layers.
    """
    kind = batch_norm_class()
    layers: list[Any] = [part for part in module.modules() if isinstance(part, kind)]
    for number, layer in enumerate(layers, start=1):
        vars(layer)["forward"] = _Forward(layer, statistics, number)

    def undo() -> None:
        for layer in layers:
            vars(layer).pop("forward", None)

    return undo


class _Forward:
    """The forward pass of one layer."""

    belongs_to_a_rank = True  # and is not sent with the model

    def __init__(self, layer: Any, statistics: BatchStatistics, number: int) -> None:
        self.layer = layer
        self.statistics = statistics
        self.number = number

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if not layer.training:
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
        check_batch_norm_input(layer, x)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        center = self._center(x)
        shifted = x - center.view(shape)
        self.statistics.agree_on(self.number)
        sums = _Sum.apply(self._sums(shifted), self.statistics)  # type: ignore[no-untyped-call]
        count = sums[-1].detach()
        mean, square = (sums[:-1] / count).chunk(2)
        variance = square - mean * mean
        self._remember(mean.detach() + center, variance.detach(), float(count))
        scaled: torch.Tensor = (shifted - mean.view(shape)) * torch.rsqrt(
            variance + layer.eps
        ).view(shape)
        if layer.affine:
            scaled = scaled * layer.weight.view(shape) + layer.bias.view(shape)
        return scaled

    def _center(self, x: torch.Tensor) -> torch.Tensor:
        """Return the running mean: relative to it, sums of squares lose no digits."""
        running: torch.Tensor | None = self.layer.running_mean
        if running is None:
            return torch.zeros_like(x[0:1].mean(_axes(x)))
        return running.detach().clone()

    def _sums(self, shifted: torch.Tensor) -> torch.Tensor:
        """Return the sums of the values and of their squares for each channel, and their number."""
        counts, axes = self.statistics.counts, _axes(shifted)
        rows = float(shifted.numel() // shifted.shape[1]) if counts else 0.0
        weight = 1.0 if counts else 0.0
        return torch.cat(
            [
                shifted.sum(axes) * weight,
                (shifted * shifted).sum(axes) * weight,
                torch.full((1,), rows, dtype=shifted.dtype, device=shifted.device),
            ]
        )

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        """Update the running statistics; the running variance is the unbiased one."""
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


def _axes(x: torch.Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]
