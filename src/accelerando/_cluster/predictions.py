"""Predictions of the chunks of a Dask array, computed where the chunks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array
import numpy as np

from accelerando._cluster.anywhere import anywhere
from accelerando.exceptions import UnsupportedError


def whole_rows(X: Any) -> Any:
    """Return a Dask array whose chunks hold whole rows; refuse anything else of Dask."""
    if not isinstance(X, dask.array.Array):
        raise UnsupportedError(
            f"Predictions of a {type(X).__name__} are not possible. dask.dataframe has "
            "to_dask_array(lengths=True)."
        )
    return X.rechunk(dict.fromkeys(range(1, X.ndim), -1))


def predict_chunks(
    predict: Callable[..., Any], sealed: bytes, X: Any, method: str, shown: np.ndarray[Any, Any]
) -> Any:
    """Return the predictions of a Dask array as one that is not computed yet.

    Parameters
    ----------
    predict : callable
        Called with the net, the rows of a chunk, the method, and the predictions of no rows.
    sealed : bytes
        The net, which is sent to each worker once. Every worker can unpickle bytes.
    X : dask.array.Array
        With whole rows; see :func:`whole_rows`. The lengths of the chunks may be unknown.
    method : str
        What to call.
    shown : array
        The predictions of one row, which show the shape and the type of the others.
    """
    net = dask.delayed(sealed, pure=False)
    call = dask.delayed(anywhere(predict), pure=False)
    parts = [
        dask.array.from_delayed(
            call(net, block, method, shown[:0]), (rows, *shown.shape[1:]), shown.dtype
        )
        for block, rows in zip(X.to_delayed().ravel(), X.chunks[0], strict=True)
    ]
    return dask.array.concatenate(parts, allow_unknown_chunksizes=True)
