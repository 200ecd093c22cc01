"""Sizes of data and models in bytes."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from accelerando.search._sizes import nbytes


def test_sizes_of_objects():
    array = np.zeros(1000)
    assert nbytes(array) == 8000
    assert nbytes({"a": array, "b": [array, array]}) == 24000
    assert nbytes(sparse.eye(100, format="csr")) > 800
    assert nbytes(torch.zeros(1000)) == 4000
    assert nbytes("text") < 100


@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame({"a": np.zeros(1000)}),
        np.array(["x" * 1000] * 8, object),
        pd.Series(["x" * 1000] * 8, dtype=object),
        ["x" * 1000] * 8,
    ],
    ids=lambda data: type(data).__name__,
)
def test_texts_and_columns_count_with_what_they_hold(data):
    assert 8000 <= nbytes(data) < 9500
