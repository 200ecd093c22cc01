"""Lists and frames as arrays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn

from accelerando.estimators import _arrays as arrays
from tests.nets import classifier, parameters_of, regressor


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([1, 2.5, True], (3,)),
        ([[1, 2], [3, 4]], (2, 2)),
        ([["a", None], ["b", "c"]], (2, 2)),
        (["a", None], (2,)),
        (pd.array([1, 2]), (2,)),
        (sparse.coo_matrix(np.eye(2)), (2, 2)),
    ],
)
def test_what_becomes_an_array(data, shape):
    assert arrays.as_array(data).shape == shape


@pytest.mark.parametrize("data", [[[1, 2], [3]], [np.ones(2)], [print], {"a": 1}, "word"])
def test_what_stays_as_it_is(data):
    assert arrays.as_array(data) is data


def test_lists_of_rows_and_of_inputs():
    rows = [np.ones(2), np.zeros(2), np.ones(2)]
    X, y = arrays.stacked(rows, [np.int64(1), np.int64(0), np.int64(1)])
    assert (X.shape, y.tolist()) == ((3, 2), [1, 0, 1])
    X, _ = arrays.stacked([torch.ones(2)] * 3, np.ones(3))
    assert X.shape == (3, 2)
    assert isinstance(X, torch.Tensor)
    inputs = [np.ones((3, 2)), np.ones((3, 4))]
    assert arrays.stacked(inputs, np.ones(3))[0] is inputs
    with pytest.raises(ValueError, match=r"list of 2 arrays, .* number 0 has one dimension"):
        arrays.stacked([np.ones(2), np.ones(2)], np.ones(3))


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble"])
def test_long_double_precision_becomes_double(dtype):
    known = arrays.in_known_precision(np.ones(2, dtype))
    torch.from_numpy(known)  # which knows no longer numbers
    assert known.dtype.itemsize == np.dtype(dtype).itemsize // 2
    plain = np.ones(2)
    assert arrays.in_known_precision(plain) is plain


def test_long_double_precision_is_trained_on():
    X, y = np.ones((30, 3), np.longdouble), np.arange(30) % 2
    assert classifier(nn.Linear(3, 2), max_epochs=1).fit(X, y).predict(X).shape == (30,)
    assert regressor().fit(X, y.astype(np.longdouble)).predict(X).shape == (30,)


FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [True, False]})


@pytest.mark.parametrize("frame", [FRAME, FRAME.convert_dtypes(), FRAME.astype({"a": "int8"})])
def test_columns_of_numbers_are_a_matrix(frame):
    assert arrays.as_matrix(frame).tolist() == [[1, 1], [2, 0]]


def test_missing_numbers_are_nan():
    frame = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [2.0, 3.0]})
    assert np.array_equal(arrays.as_matrix(frame), [[1, 2], [np.nan, 3]], equal_nan=True)


class Frame:
    """A frame of Polars: dtypes are a list, and know themselves whether they are numeric."""

    def __init__(self, **columns):
        self.content = {name: np.asarray(values) for name, values in columns.items()}
        self.columns = list(columns)
        self.dtypes = [self.Kind(column.dtype.kind) for column in self.content.values()]

    class Kind:
        def __init__(self, letter):
            self.letter = letter

        def is_numeric(self):
            return self.letter in "iuf"

        def __str__(self):
            return "Boolean" if self.letter == "b" else self.letter

    def __len__(self):
        return len(self.to_numpy())

    def __getitem__(self, name):
        return pd.Series(self.content[name])

    def to_numpy(self):
        """Return numbers, also of dates, if there are no words."""
        found = [
            column.astype(object if column.dtype.kind == "U" else "float64")
            for column in self.content.values()
        ]
        return np.stack(found, axis=1)


DAYS = np.array(["2020-01-01", "2020-01-02"], "datetime64[D]")


def test_frames_of_polars_are_matrices_or_columns():
    frame = Frame(a=[1.0, 2.0], b=[True, False])
    assert arrays.as_matrix(frame).tolist() == [[1, 1], [2, 0]]
    assert [column.shape for column in arrays.as_columns(frame).values()] == [(2, 1), (2, 1)]
    assert arrays.as_columns(FRAME) is FRAME


class Columns(nn.Linear):
    def forward(self, a, b):
        return super().forward(torch.cat([a, b], dim=1))


@pytest.mark.parametrize("module", [nn.Linear, Columns])
def test_frames_of_polars_are_trained_on(module):
    values = np.random.default_rng(0).normal(size=(30, 2))
    nets = [
        classifier(partial(module, 2, 2), max_epochs=1).fit(frame, np.arange(30) % 2)
        for frame in (
            Frame(a=values[:, 0], b=values[:, 1]),
            pd.DataFrame(values.astype("float32"), columns=["a", "b"]),
        )
    ]
    assert torch.equal(*map(parameters_of, nets))
    assert nets[0].predict(Frame(a=values[:, 0], b=values[:, 1])).shape == (30,)


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (FRAME.assign(word="x"), "columns word of"),
        (FRAME.assign(day=pd.Timestamp("2020-01-01")), "columns day of"),
        (FRAME.assign(kind=pd.Categorical(["u", "v"])), "columns kind of"),
        (Frame(a=[1.0, 2.0], b=["x", "y"], c=[True, False]), "columns b of"),
        (Frame(a=[1.0, 2.0], b=DAYS), "columns b of"),
    ],
)
def test_columns_of_anything_else_are_named(frame, named):
    with pytest.raises(ValueError, match=f"The {named} X hold no numbers"):
        arrays.as_matrix(frame)


def test_columns_with_one_name():
    arrays.refuse_equal_names(FRAME)
    with pytest.raises(ValueError, match=r"Several columns of X are called a\. Give each"):
        arrays.refuse_equal_names(FRAME.set_axis(["a", "a"], axis=1))
