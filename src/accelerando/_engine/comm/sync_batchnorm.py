"""Synchronized BatchNorm: statistics of the global batch, whichever rank its rows are on.

With the statistics of a rank's rows alone, the result would depend on the number of ranks.
PyTorch's ``SyncBatchNorm`` needs GPUs and a registered process group; this one works on any device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accelerando._engine._torch import check_batch_norm_input
from accelerando._engine.comm.communicator import Traffic, all_reduce_bytes
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

    The same message adds up the values of the layer. The mean over all ranks is thus known before
    the squares are added up, which are those of the distances from it. Relative to anything else,
    such as the running mean, the variance would be a difference of large numbers: raw features far
    from zero, or a batch of two rows, would lose most of their digits.

    Parameters
    ----------
    group : ProcessGroup
        The ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.counts = True  # False while this rank has no row and only fills in
        self.layers: list[_Forward] = []
        self._traffic = Traffic()
        self._forget()

    @property
    def width(self) -> int:
        """Numbers of the widest layer: its sums by channel, and the number of values."""
        return 1 + max((one.layer.num_features for one in self.layers), default=0)

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
        values, started = values.contiguous(), time.perf_counter()
        self.group.all_reduce(values)
        sent = all_reduce_bytes(values.nbytes, self.group.shard.size)
        self._traffic = self._traffic.plus(Traffic(sent, time.perf_counter() - started))
        return values

    def take_traffic(self) -> Traffic:
        """Return what the sums have cost since the last call."""
        traffic, self._traffic = self._traffic, Traffic()
        return traffic

    def end(self, loss: torch.Tensor) -> torch.Tensor:
        """End the forward pass; return the loss with edges to sums that this rank has filled in."""
        self.agree_on(_LAST, loss)
        if self._filled:
            loss = _Attach.apply(loss, *self._filled)  # type: ignore[no-untyped-call]
        self._forget()
        return loss

    def agree_on(
        self, layer: int, x: torch.Tensor, sums: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Wait until all ranks call this layer or a later one, filling in for those before it.

        Parameters
        ----------
        layer : int
            From 1 on, in the order of their definition.
        x : Tensor
            What goes into the layer.
        sums : Tensor, optional
            The sums of the values of each channel, and their number.

        Returns
        -------
        Tensor or None
            `sums` over the ranks that call this layer; None at the end of the forward pass.
        """
        rank, size = self.group.shard
        width = self.width
        while size > 1:
            said = torch.zeros(size + width, dtype=torch.float64, device=self.group.device)
            said[rank] = float(layer * _KINDS + 2 * _DTYPES.index(x.dtype) + x.requires_grad)
            if sums is not None:
                said[size : size + len(sums)] = sums
            found = self.sum(said)
            codes = [round(code) for code in found[:size].tolist()]
            first = min(codes) // _KINDS
            here = [code for code in codes if code // _KINDS == first]
            everywhere = len(here) == size
            if first != _LAST:
                self._check(first, everywhere=everywhere, alike=len(set(here)) == 1)
            if first == layer:
                if sums is None:
                    return None
                # Others have added the sums of a later layer: those of this one are added again.
                total = found[size:] if everywhere else self.sum(_padded(sums, width))
                return total[: len(sums)]
            self._fill_in(first, here[0] % _KINDS, x.device)
        return sums

    def _fill_in(self, layer: int, kind: int, device: torch.device) -> None:
        """Take part in the sums of a layer that this rank has skipped."""
        forward = self.layers[layer - 1]
        none = torch.zeros(self.width, dtype=torch.float64, device=self.group.device)
        total = self.sum(none)
        width, needed = 2 * forward.layer.num_features + 1, bool(kind % 2)
        dtype = _precision(_DTYPES[kind // 2])
        zeros = torch.zeros(width, dtype=dtype, device=device, requires_grad=needed)
        sums = _Sum.apply(zeros, self)  # type: ignore[no-untyped-call]
        forward.remember(sums, _center(total[: forward.layer.num_features + 1]).to(sums))
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
        if not layer.training or self.statistics.group.shard.size == 1:
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
        check_batch_norm_input(layer, x)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        count = float(x.numel() // x.shape[1]) if self.statistics.counts else 0.0
        wide = x.to(_precision(x.dtype))
        variance, mean = torch.var_mean(wide, _axes(x), correction=0)
        center = self._center_of_all(x, mean.detach(), count)
        apart = mean - center
        sums = torch.cat([apart, variance + apart * apart, torch.ones_like(apart[:1])]) * count
        sums = _Sum.apply(sums, self.statistics)  # type: ignore[no-untyped-call]
        mean, variance = self.remember(sums, center)
        scale = torch.rsqrt(variance + layer.eps)
        scaled = wide - (center + mean).view(shape)
        if layer.affine:
            scaled = scaled * (scale * layer.weight).view(shape) + layer.bias.view(shape)
        else:
            scaled = scaled * scale.view(shape)
        return scaled.to(x.dtype)

    def _center_of_all(self, x: torch.Tensor, mean: torch.Tensor, count: float) -> torch.Tensor:
        """Return the mean over all ranks; it is a constant for gradients, which it cancels in."""
        own = torch.cat([mean.double() * count, mean.new_tensor([count], dtype=torch.float64)])
        total = self.statistics.agree_on(self.number, x, own.to(self.statistics.group.device))
        assert total is not None
        return _center(total).to(mean)

    def remember(
        self, sums: torch.Tensor, center: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean, relative to the center, and variance; update the running statistics.

        The running variance is the unbiased one.
        """
        layer, count = self.layer, float(sums[-1].detach())
        # If only ranks without rows have called the layer, there is nothing to divide by.
        mean, square = (sums[:-1] / sums[-1].detach().clamp(min=1.0)).chunk(2)
        variance = square - mean * mean
        if not layer.track_running_stats or not count:
            return mean, variance
        with torch.no_grad():
            number, factor = layer.num_batches_tracked, layer.momentum
            if number is not None:
                number.add_(1)
            if factor is None:
                factor = 0.0 if number is None else 1.0 / float(number)
            if layer.running_mean is not None:
                layer.running_mean.lerp_((mean + center).to(layer.running_mean), factor)
            if layer.running_var is not None:
                unbiased = variance * (count / max(1.0, count - 1.0))
                layer.running_var.lerp_(unbiased.to(layer.running_var), factor)
        return mean, variance


def _center(sums: torch.Tensor) -> torch.Tensor:
    """Return the mean of each channel from the sums and the number of values."""
    return sums[:-1] / sums[-1].clamp(min=1.0)


def _precision(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of statistics: single precision for inputs in half precision."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _padded(values: torch.Tensor, width: int) -> torch.Tensor:
    return nn.functional.pad(values, (0, width - len(values)))


def _axes(x: torch.Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]
