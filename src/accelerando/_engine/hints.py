"""Hints for errors of the first update.

The error keeps its type and traceback; the hint is added as a note below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from accelerando._engine.data.feed import leaves


def explain(error: Exception, batch: Any, module: nn.Module) -> None:
    """Add a hint to an error of the module or the criterion, if one is likely to help."""
    X, y = batch if isinstance(batch, list | tuple) and len(batch) == 2 else (batch, None)
    wanted = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if isinstance(error, TypeError) and isinstance(X, Mapping):
        error.add_note(
            f"X is a frame or a dictionary, so its parts are keyword arguments of forward: "
            f"{', '.join(map(str, X))}. For one array, pass X.to_numpy(dtype='float32')."
        )
        return
    for name, data in (("X", X), ("y", y)):
        other = _other_float(data, wanted)
        if other is not None:
            error.add_note(
                f"{name} has the type {_short(other)} and the module's parameters are "
                f"{_short(wanted)}: try {name}.astype('{_short(wanted)}')."
            )
    if isinstance(y, torch.Tensor) and y.dtype in (torch.int32, torch.int16, torch.uint8):
        error.add_note(
            f"y has the type {_short(y.dtype)}; PyTorch's classification losses want int64: try "
            "y.astype('int64')."
        )


def _other_float(data: Any, wanted: torch.dtype | None) -> torch.dtype | None:
    for leaf in leaves(data):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != wanted:
            return leaf.dtype
    return None


def _short(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
