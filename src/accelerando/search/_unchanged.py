"""Check that training leaves its rows as they are, because all models of a process share them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import issparse

from accelerando.search._data import Chunk

__all__ = ["ChangedRowsError", "checksums", "unchanged"]


class ChangedRowsError(ValueError):
    """A model changed the rows that it was given, and with them the rows of all other models."""


def unchanged(method: str, rows: Chunk, call: Callable[[], Any]) -> Any:
    """Return what `call` returns; raise ChangedRowsError if it changes the values of `rows`."""
    before = checksums(rows)
    result = call()
    if checksums(rows) != before:
        raise ChangedRowsError(
            f"{method} changes its rows in place, and all models of a search share them. Let it "
            "work on a copy, such as X = X.copy(), or copy=True in a step of a pipeline."
        )
    return result


def checksums(rows: Chunk) -> list[Any]:
    """Return a checksum of each array of a chunk; None for values of an unknown type.

    Examples
    --------
    >>> rows = Chunk(np.zeros(3), np.arange(3), {})
    >>> before = checksums(rows)
    >>> rows.X[1] = 1
    >>> [a == b for a, b in zip(checksums(rows), before)]
    [False, True]
    """
    return [_checksum(value) for value in (rows.X, rows.y, *rows.params.values())]


def _checksum(value: Any) -> Any:
    if issparse(value):
        return _checksum(getattr(value, "data", None))
    if hasattr(value, "iloc"):  # a frame or a series of pandas
        if value.ndim == 1:
            return _of_array(value.to_numpy()) if isinstance(value.dtype, np.dtype) else None
        columns = (value.iloc[:, i] for i in range(value.shape[1]))
        return [*value.columns], [_checksum(column) for column in columns]
    if hasattr(value, "detach"):  # a tensor
        try:
            return _of_array(value.detach().cpu().numpy())
        except TypeError:  # a type or a layout that NumPy does not have
            return None
    return _of_array(value) if isinstance(value, np.ndarray) else None


def _of_array(array: Any) -> int | None:
    if array.dtype.hasobject or not array.dtype.itemsize:
        return None
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
