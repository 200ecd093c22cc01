"""How ranks form a process group, and what their messages go through."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def form(
    store: Any, rank: int, size: int, *, seconds: float, address: str, device: torch.device
) -> Any:
    """Form a process group that PyTorch's global registry knows nothing of.

    Many of them may live in one process, and one that failed is dropped like any other object.
    """
    timeout = timedelta(seconds=seconds)
    processes = dist.ProcessGroup(store, rank, size)
    backend: Any
    if backend_for(devices(store, rank, size, device)) == "nccl":
        kind = dist.ProcessGroup.BackendType.NCCL
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        backend = dist.ProcessGroupNCCL(store, rank, size, options)
        backend._set_sequence_number_for_group()
        backend.eager_connect_single_device(device)
    else:
        kind = dist.ProcessGroup.BackendType.GLOO
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        # Listen where the Dask worker listens, not on every interface of the machine.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        backend = dist.ProcessGroupGloo(store, rank, size, options)
        backend._set_sequence_number_for_group()
    processes._set_default_backend(kind)
    processes._register_backend(device, kind, backend)
    return processes


def devices(store: Any, rank: int, size: int, device: torch.device) -> list[str]:
    """Tell the others which GPU this rank has, and hear which they have; "" is a CPU."""
    if device.type != "cuda":
        return [""] * size
    store.set(f"device/{rank}", name_of(device))
    return [store.get(f"device/{other}").decode() for other in range(size)]


def name_of(device: torch.device) -> str:
    """Return a name that no other GPU of any machine has."""
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"


def backend_for(names: Sequence[str]) -> str:
    """Return what ranks with these devices talk through.

    NCCL does not take two ranks on one GPU, gloo does: its messages go through the CPU's memory.

    Examples
    --------
    >>> backend_for(["", ""]), backend_for(["host a", "host b"]), backend_for(["host a", "host a"])
    ('gloo', 'nccl', 'gloo')
    """
    return "nccl" if all(names) and len(set(names)) == len(names) else "gloo"
