"""Sizes of data and models in bytes, from which memory is planned."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["nbytes"]

SAMPLE = 20  # objects of an array whose sizes are looked at


def nbytes(value: Any, depth: int = 4) -> int:
    """Return the approximate size of the arrays, tables and tensors in `value` in bytes.

    Examples
    --------
    >>> import numpy as np
    >>> nbytes({"weights": np.zeros(1000), "bias": [np.zeros(500)]})
    12000
    """
    size = getattr(value, "nbytes", None)
    if isinstance(size, int) and hasattr(value, "dtype"):
        return size + (_objects_in(value) if getattr(value.dtype, "hasobject", False) else 0)
    if hasattr(value, "memory_usage"):  # a frame; a series has nbytes
        columns = (value.iloc[:, i] for i in range(value.shape[1]))
        return sum(map(nbytes, columns))
    if isinstance(size, int):
        return size
    if hasattr(value, "indptr"):
        return int(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if depth == 0:
        return 64
    if isinstance(value, dict):
        return sum(nbytes(item, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(nbytes(item, depth - 1) for item in value)
    return nbytes(vars(value), depth - 1) if hasattr(value, "__dict__") else 64


def _objects_in(values: Any) -> int:
    """Return about how many bytes the objects in an array or a column have, such as texts."""
    flat = np.asarray(values, dtype=object).ravel()
    some = flat[:: max(1, len(flat) // SAMPLE)]
    return round(len(flat) / max(1, len(some)) * sum(map(nbytes, some)))
