"""Synchronized BatchNorm: statistics of the global batch, whichever rank its rows are on.

With the statistics of a rank's rows alone, the result would depend on the number of ranks.
PyTorch's ``SyncBatchNorm`` needs GPUs and a registered process group; this one works on any device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accelerando._engine._torch import check_batch_norm_input
from accelerando._engine.comm.process_group import ProcessGroup
from accelerando._engine.micro_batch import is_plain_batch_norm
from accelerando.exceptions import UnsupportedError


class BatchStatistics:
    """Sums over the ranks, and whether this rank's rows count.

    Ranks may skip different layers, because no row of theirs needs one or at random. Before each
    layer every rank says which one it is about to call. If they differ, the one that was defined
    first is summed: ranks that have not called it add zeros, and keep its statistics, too. In the
    backward pass they take part again, so an edge leads from the loss to the sum. PyTorch computes
    gradients in the reverse order of the forward pass, so that ranks meet in the right sums.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.counts = True  # False while this rank has no row and only fills in
        self.layers: list[_Forward] = []
        self._forget()

    def begin(self, *, counts: bool) -> None:
        """Begin an update; `counts` says whether this rank has a row of it."""
        self.counts = counts
        self._forget()

    def _forget(self) -> None:
        self._called: set[int] = set()  # layers in this forward pass
        self._skipped: set[int] = set()  # those that some ranks have not called
        self._filled: list[torch.Tensor] = []  # sums in which this rank has filled in

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks; `values` may be overwritten."""
        values = values.contiguous()
        self.group.all_reduce(values)
        return values

    def end(self, loss: torch.Tensor) -> torch.Tensor:
        """End the forward pass; return the loss with edges to sums that this rank has filled in."""
        self.agree_on(_LAST, loss)
        if self._filled:
            loss = _Attach.apply(loss, *self._filled)  # type: ignore[no-untyped-call]
        self._forget()
        return loss

    def agree_on(self, layer: int, x: torch.Tensor) -> None:
        """Wait until all ranks call this layer or a later one, filling in for those before it.

        Parameters
        ----------
        layer : int
            From 1 on, in the order of their definition.
        x : Tensor
            What goes into the layer.
        """
        rank, size = self.group.shard
        while size > 1:
            said = [0.0] * size
            said[rank] = float(layer * _KINDS + 2 * _DTYPES.index(x.dtype) + x.requires_grad)
            codes = [round(code) for code in self.group.sum(*said)]
            first = min(codes) // _KINDS
            here = [code for code in codes if code // _KINDS == first]
            if first != _LAST:
                self._check(first, everywhere=len(here) == size, alike=len(set(here)) == 1)
            if first == layer:
                return
            self._fill_in(first, here[0] % _KINDS, x.device)

    def _fill_in(self, layer: int, kind: int, device: torch.device) -> None:
        """Take part in the sums of a layer that this rank has skipped."""
        forward = self.layers[layer - 1]
        width, needed = 2 * forward.layer.num_features + 1, bool(kind % 2)
        zeros = torch.zeros(width, dtype=_DTYPES[kind // 2], device=device, requires_grad=needed)
        sums = _Sum.apply(zeros, self)  # type: ignore[no-untyped-call]
        forward.remember(sums)
        if needed:
            self._filled.append(sums)

    def _check(self, layer: int, *, everywhere: bool, alike: bool) -> None:
        """Raise if ranks call a layer one after the other that one process would call once."""
        again = layer in self._skipped or (layer in self._called and not everywhere)
        self._called.add(layer)
        if not everywhere:
            self._skipped.add(layer)
        if again or not alike:
            raise UnsupportedError(
                "Ranks have called layers with BatchNorm in different orders in one update, whose "
                "statistics are those of all ranks. Define these layers in the order in which "
                "forward calls them, each of them once, use GroupNorm or LayerNorm in layers that "
                "are skipped now and then, or train on one rank (max_workers=1)."
            )


_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_KINDS = 2 * len(_DTYPES)
_LAST = 1 << 40  # the end of the forward pass comes after all layers


class _Attach(torch.autograd.Function):
    """The loss; gradients of zero flow to the sums, so that their backward pass is called."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, *sums: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*sums)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradient, *(torch.zeros_like(one) for one in ctx.saved_tensors)


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
    layers: list[Any] = [part for part in module.modules() if is_plain_batch_norm(part)]
    statistics.layers = [_Forward(layer, statistics, n) for n, layer in enumerate(layers, start=1)]
    for forward in statistics.layers:
        vars(forward.layer)["forward"] = forward

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
        self._compute: Callable[[torch.Tensor], torch.Tensor] = self._synchronized
        if "torch._dynamo" in sys.modules:  # a compiled module: messages are no part of its graph
            self._compute = torch.compiler.disable(self._compute)  # type: ignore[no-untyped-call]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._compute(x)

    def _synchronized(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if not layer.training:
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
        check_batch_norm_input(layer, x)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        self.statistics.agree_on(self.number, x)
        shifted = x - self._center(x).view(shape)
        sums = _Sum.apply(self._sums(shifted), self.statistics)  # type: ignore[no-untyped-call]
        mean, variance = self.remember(sums)
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
            return torch.zeros(self.layer.num_features, dtype=x.dtype, device=x.device)
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

    def remember(self, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean, relative to the center, and variance; update the running statistics.

        The running variance is the unbiased one.
        """
        layer, count = self.layer, float(sums[-1].detach())
        # If only ranks without rows have called the layer, there is nothing to divide by.
        mean, square = (sums[:-1] / sums[-1].detach().clamp(min=1.0)).chunk(2)
        variance = square - mean * mean
        if layer.running_mean is None or not count:
            return mean, variance
        with torch.no_grad():
            layer.num_batches_tracked.add_(1)
            factor = layer.momentum
            if factor is None:
                factor = 1.0 / float(layer.num_batches_tracked)
            layer.running_mean.lerp_(mean + layer.running_mean, factor)
            layer.running_var.lerp_(variance * (count / max(1.0, count - 1.0)), factor)
        return mean, variance


def _axes(x: torch.Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]
