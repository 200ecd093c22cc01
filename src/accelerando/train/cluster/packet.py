"""States and predictions as byte strings, read without running anything."""

from __future__ import annotations

import io
import json
from typing import Any

import torch

from accelerando.train import state


def pack(content: dict[str, Any]) -> bytes:
    """Turn tensors, and containers and numbers around them, into bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """Read what :func:`pack` wrote, on the CPU."""
    found: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return found


def pack_state(net: Any, *, records: bool = True) -> bytes:
    """Return everything a rank needs to go on where this one is, and what it has recorded."""
    frozen = [name for name, p in net.module_.named_parameters() if not p.requires_grad]
    return pack(
        {
            **state.learned(net),
            "json": json.dumps({**state.position(net), "frozen": frozen}),
            "updates": net.records_.updates.tensor()[: None if records else 0],
        }
    )


def take_up(net: Any, content: bytes) -> torch.Tensor:
    """Put a packed state into a net; return the recorded updates."""
    found = unpack(content)
    plain = json.loads(found["json"])
    frozen = set(plain["frozen"])
    for name, parameter in net.module_.named_parameters():
        parameter.requires_grad_(name not in frozen)
    state.take_up(net, found, plain)
    records: torch.Tensor = found["updates"]
    return records
