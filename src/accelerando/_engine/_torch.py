"""Private names of PyTorch, each wrapped in a small typed function.

This is the only module of the engine that uses them, so a new release of PyTorch can break this
module only. ``tests/_engine/test_torch.py`` has one test per function.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _unflatten_dense_tensors

Tensors: TypeAlias = list[torch.Tensor]


def foreach_add_(tensors: Tensors, others: Tensors, *, alpha: float = 1.0) -> None:
    """Add ``alpha · others`` to `tensors` in place, in one call for all of them."""
    torch._foreach_add_(tensors, others, alpha=alpha)


def foreach_sub(tensors: Tensors, others: Tensors) -> Tensors:
    """Return the differences ``tensors − others``."""
    return list(torch._foreach_sub(tensors, others))


def foreach_sub_(tensors: Tensors, others: Tensors) -> None:
    """Subtract `others` from `tensors` in place."""
    torch._foreach_sub_(tensors, others)


def foreach_mul_(tensors: Tensors, factor: float) -> None:
    """Multiply `tensors` by a number in place."""
    torch._foreach_mul_(tensors, factor)


def foreach_div_(tensors: Tensors, divisor: float) -> None:
    """Divide `tensors` by a number in place."""
    torch._foreach_div_(tensors, divisor)


def foreach_copy_(tensors: Tensors, others: Tensors) -> None:
    """Copy the values of `others` to `tensors`."""
    torch._foreach_copy_(tensors, others)


def unflatten(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Tensors:
    """Return views of a one-dimensional tensor with the shapes of `like`, in their order.

    Much faster than ``split`` and ``view`` for many small tensors.
    """
    return list(_unflatten_dense_tensors(flat, like))  # type: ignore[no-untyped-call]


def version_of(tensor: torch.Tensor) -> int:
    """Return the number of changes that a tensor has seen in place.

    Changes of ``tensor.data``, and of what it points at, do not count.
    """
    return int(tensor._version)


def batch_norm_class() -> type[nn.Module]:
    """Return the base class of BatchNorm1d, BatchNorm2d, BatchNorm3d and SyncBatchNorm."""
    return nn.modules.batchnorm._BatchNorm


def check_batch_norm_input(layer: nn.Module, x: torch.Tensor) -> None:
    """Raise ``ValueError`` if `x` has a number of dimensions that the BatchNorm layer refuses."""
    check: Any = layer._check_input_dim
    check(x)


def mark_optimizer_called(optimizer: torch.optim.Optimizer) -> None:
    """Make learning-rate schedulers assume that the optimizer has taken a step.

    On the driver of a cluster, optimizers receive states and never step. A scheduler that steps
    there would warn that it was called before ``optimizer.step``.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def make_process_group(
    store: Any,
    rank: int,
    size: int,
    *,
    backend: Literal["gloo", "nccl"],
    seconds: float,
    address: str,
    device: torch.device,
) -> dist.ProcessGroup:
    """Return a process group that PyTorch's global registry does not contain.

    Several such groups can exist in one process, and a group that failed is garbage like any other
    object. ``torch.distributed.init_process_group`` allows one per process.

    Parameters
    ----------
    store : torch.distributed.Store
        Where the ranks exchange their addresses; give each group another prefix.
    rank, size : int
        This rank, and the number of ranks.
    backend : "gloo" or "nccl"
        The same on all ranks.
    seconds : float
        Timeout of collective operations.
    address : str
        Host name or IP address on which gloo listens.
    device : torch.device
        Device of the tensors.
    """
    options: Any
    implementation: Any
    if backend == "nccl":
        kind = dist.ProcessGroup.BackendType.NCCL
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=seconds)
        implementation = dist.ProcessGroupNCCL(store, rank, size, options)
        implementation._set_sequence_number_for_group()
        implementation.eager_connect_single_device(device)
    else:
        kind = dist.ProcessGroup.BackendType.GLOO
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=seconds)
        # By default gloo listens on the address that the host name resolves to.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        implementation = dist.ProcessGroupGloo(store, rank, size, options)
        implementation._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(device, kind, implementation)
    return group


def release_ddp(wrapped: Any) -> None:
    """Make a ``DistributedDataParallel`` release its process group now.

    DDP's hooks keep the wrapper in reference cycles. Until the garbage collector finds them, the
    connections stay open, and neighbors keep waiting for a rank that has left.
    """
    wrapped.reducer = wrapped.logger = wrapped.process_group = None


def pack(content: dict[str, Any]) -> bytes:
    """Return a dictionary of tensors, texts and numbers as bytes, to be sent."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """Return what :func:`pack` was given, on the CPU; nothing in it is executed."""
    found: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return found
