"""Models share their rows: one that changes them ends the search."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix, dok_matrix, lil_matrix
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from accelerando.search import HyperbandSearchCV
from accelerando.search._data import Chunk
from accelerando.search._unchanged import ChangedRowsError, checksums, unchanged

from .estimators import Counter

X = np.arange(12.0).reshape(4, 3)


def add_column(frame):
    frame["new"] = 1.0


def set_value(value):
    value[0, 0] = 7.0


VALUES = {
    "array": (X, set_value),
    "not contiguous": (np.asfortranarray(X)[::2], set_value),
    "integers": (X.astype(int), set_value),
    "dates": (X.astype("datetime64[s]"), lambda value: value.fill(0)),
    "texts": (np.array(["a", "b"]), lambda value: value.fill("c")),
    "sparse": (csr_matrix(X), lambda value: value.data.fill(1.0)),
    "frame": (pd.DataFrame(X, columns=list("aba")), lambda f: f.iloc.__setitem__((0, 2), 9.0)),
    "frame, column": (pd.DataFrame(X), add_column),
    "series": (pd.Series(X[0]), lambda series: series.iloc.__setitem__(0, 9.0)),
    "tensor": (torch.from_numpy(X.copy()), set_value),
}


@pytest.mark.parametrize("place", ["X", "y", "weight"])
@pytest.mark.parametrize("kind", VALUES)
def test_a_change_is_noticed(kind, place):
    value, change = VALUES[kind]
    value = value.clone() if kind == "tensor" else value.copy()
    parts = {"X": X, "y": None, "weight": None, place: value}
    rows = Chunk(parts["X"], parts["y"], {"weight": parts["weight"]})
    assert unchanged("partial_fit", rows, lambda: 3) == 3
    with pytest.raises(ChangedRowsError, match=r"^partial_fit changes its rows in place"):
        unchanged("partial_fit", rows, lambda: change(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [1, 2],
        np.array(["a", None], dtype=object),
        lil_matrix(X),
        dok_matrix(X),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.eye(2).to_sparse(),
        np.zeros((0, 3)),
        np.array(["", ""]),
        pd.Series(["a", "b"], dtype="category"),
        pd.DataFrame({"a": [1], "b": ["x"]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_allowed(value):
    rows = Chunk(value, value, {"p": value})
    assert checksums(rows) == checksums(rows)
    unchanged("score", rows, lambda: None)


class Changing(Counter):
    """Changes the rows in `method`."""

    def __init__(self, slope=0.0, method="partial_fit"):
        super().__init__(slope)
        self.method = method

    def partial_fit(self, X, y=None):
        if self.method == "partial_fit":
            X *= 2
        return super().partial_fit(X, y)

    def score(self, X, y=None):
        if self.method == "score":
            X *= 2
        return super().score(X, y)


@pytest.mark.parametrize("method", ["partial_fit", "score"])
@pytest.mark.parametrize("limit", [None, 100.0])
def test_a_model_that_changes_rows_ends_the_search(data, method, limit):
    before = [part.copy() for part in data]
    search = HyperbandSearchCV(
        Changing(method=method), {"slope": [0.1, 0.2]}, max_iter=3, client=None,
        max_call_seconds=limit,
    )  # fmt: skip
    with pytest.raises(ChangedRowsError, match=f"^{method} changes its rows in place"):
        search.fit(*data)
    for part, kept in zip(data, before, strict=True):
        np.testing.assert_array_equal(part, kept)  # of the user


def test_a_step_that_transforms_in_place_is_named(data):
    X, y = data
    X = X.astype(float)
    pipeline = make_pipeline(StandardScaler(copy=False).fit(X.copy()), SGDClassifier())
    search = HyperbandSearchCV(
        pipeline, {"sgdclassifier__alpha": [1e-4, 1e-3]}, max_iter=3, client=None
    )
    with pytest.raises(ChangedRowsError, match="copy=True in a step of a pipeline"):
        search.fit(X, y)
    pipeline.set_params(standardscaler__copy=True)
    assert search.fit(X, y).n_iter_ > 0
