"""States and predictions as byte strings, read without running anything."""

from __future__ import annotations

import io
import json
from typing import Any

import torch

from accelerando.train import state
from accelerando.train.run import Run


def pack(content: dict[str, Any]) -> bytes:
    """Turn tensors, and containers and numbers around them, into bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """Read what :func:`pack` wrote, on the CPU."""
    found: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return found


def pack_state(net: Any, *, records: bool = True, own: bool = True) -> bytes:
    """Return everything a rank needs to go on where this one is, and what it has recorded.

    Without `own` it is not told what only this rank has, where ranks have parameters of their own.
    """
    frozen = [name for name, p in net.module_.named_parameters() if not p.requires_grad]
    return pack(
        {
            **state.learned(net),
            "json": json.dumps({**state.position(net), "frozen": frozen}),
            "updates": net.records_.updates.tensor()[: None if records else 0],
            "ranks": state.ranks_of(net) if own else {},
        }
    )


def pack_ranks(net: Any) -> bytes:
    """Return what only this rank has: its own parameters, what its optimizers remember."""
    return pack({"ranks": state.ranks_of(net)})


def run_of(content: bytes) -> Run:
    """Return where the run of a packed state stands."""
    return Run(**json.loads(unpack(content)["json"])["run"])


def take_up(net: Any, content: bytes) -> torch.Tensor:
    """Put a packed state into a net; return the recorded updates."""
    found = unpack(content)
    plain = json.loads(found["json"])
    frozen = set(plain["frozen"])
    for name, parameter in net.module_.named_parameters():
        parameter.requires_grad_(name not in frozen)
    state.take_up(net, found, plain)
    net.fleet_, net.saved_ranks_ = None, found["ranks"] or None
    records: torch.Tensor = found["updates"]
    return records
