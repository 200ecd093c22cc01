"""Predictions of the chunks of a Dask array."""

import dask
import dask.array as da
import numpy as np
import pytest

from accelerando._cluster.predictions import predict_chunks, whole_rows
from accelerando.exceptions import UnsupportedError


def doubled(net, X, method, empty):
    assert (net, method) == ("net", "predict")
    return empty if len(X) == 0 else 2 * X.sum(1)


def test_chunks_hold_whole_rows():
    X = whole_rows(da.ones((6, 4), chunks=(2, 3)))
    assert X.chunks == ((2, 2, 2), (4,))
    lazy = predict_chunks(doubled, "net", X, "predict", np.zeros(1))
    assert (lazy.shape, lazy.chunks) == ((6,), ((2, 2, 2),))
    with dask.config.set(scheduler="synchronous"):
        assert lazy.compute().tolist() == [8.0] * 6


def test_other_collections_are_refused():
    with pytest.raises(UnsupportedError, match="to_dask_array"):
        whole_rows(dask.delayed(1))
