"""Data that cannot be trained on or predicted is refused with a sentence that names what came."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import train_test_split
from skorch.dataset import ValidSplit
from skorch.helper import predefined_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerando.estimators import _input_checks as input_checks
from tests.nets import classifier, regressor

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 3)).astype("float32")
Y = np.arange(30) % 2
FRAME = pd.DataFrame(X, columns=list("abc"))
RAGGED = [[1.0] * (1 + row % 3) for row in range(30)]


class Parts(nn.Linear):
    def forward(self, a, b):
        return super().forward(torch.cat([a, b], dim=1))


def net(module=None, **params):
    return classifier(nn.Linear(3, 2) if module is None else module, max_epochs=1, **params)


TRAINED_ON = {
    "a number": ((np.array(3.0), Y), r"X must be an array with one entry .* Got array\(3\.\)"),
    "a series": ((FRAME["a"], Y), r"X is a Series, .* Pass X.to_frame\(\)"),
    "records": ((np.zeros(30, [("a", "f4"), ("b", "f4")]), Y), r"X has the type \[\('a'"),
    "masks": ((np.ma.masked_greater(X, 1), Y), r"X is a masked array, and \d+ of its 90 values"),
    "a sparse tensor": ((torch.from_numpy(X).to_sparse(), Y), "layout sparse_coo, .*to_dense"),
    "lengths": ((RAGGED, Y), r"rows of X have different lengths \(1, 2, 3\)"),
    "one name twice": ((FRAME.set_axis(list("aab"), axis=1), Y), "columns of X are called a. Give"),
    "parts": (({"a": X, "b": X[:9]}, Y), "of X have different numbers of rows: a has 30, b has 9"),
    "a set": ((X, {0, 1}), "y must be an array with one entry per row"),
    "a word": ((X, "label"), "y must be an array with one entry per row. Got 'label'"),
    "a scalar": ((X, 1), "Got 1 instead, which has no rows"),
    "labels one by one": ((X, (label for label in Y)), "Got a generator instead, which has no"),
    "nothing": ((X, [None] * 30), "y holds None or nan in 30 of the 30 rows"),
    "a dictionary": ((X, {"y": Y}), "one class per row. Got a dictionary instead; override get_"),
    "one-hot": ((X, np.eye(2, dtype="int64")[Y]), r"one-hot .*\(30, 2\)\), .*y.argmax\(axis=1\)"),
    "one-hot floats": ((X, np.eye(2, dtype="float32")[Y]), r"one-hot .* Pass y.argmax\(axis=1\)"),
    "too few of each": ((X[:5], Y[:5]), r"ValidSplit\(5, stratified=True\) holds out a row of ev"),
}


@pytest.mark.parametrize("row", TRAINED_ON)
def test_data_that_cannot_be_trained_on(row):
    data, message = TRAINED_ON[row]
    with pytest.raises((TypeError, ValueError), match=message):
        net().fit(*data)


PREDICTED = {
    "nothing": (None, "X must be an array, .* Got None instead"),
    "a word": ("x", "X must be an array, .* Got 'x' instead"),
    "rows one by one": ((row for row in X), "Got a generator instead. Write an IterableDataset"),
    "words": (X.astype(str), "X has the type <U32"),
    "more dimensions": (X[:, None], r"Expected 2D array, got 3D array .* shape \(30, 1, 3\)"),
    "parts": ({"a": X, "b": X[:9]}, "of X have different numbers of rows: a has 30, b has 9"),
}


@pytest.mark.parametrize("row", PREDICTED)
def test_data_that_cannot_be_predicted(row):
    rows, message = PREDICTED[row]
    fitted = net().fit(X, Y)
    for method in (fitted.predict, fitted.predict_proba, fitted.forward):
        with pytest.raises((TypeError, ValueError), match=message):
            method(rows)


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.BCEWithLogitsLoss])
@pytest.mark.parametrize("labels", [Y, np.where(Y, "a", "b")])
def test_a_loss_of_numbers_for_classes(loss, labels):
    with pytest.raises(ValueError, match=r"criterion=\w+ compares .* Pass criterion=nn.Cross"):
        net(criterion=loss).fit(X, labels)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (ValidSplit, r"train_split must return the data set .* ValidSplit returned a ValidSplit"),
        (train_test_split, r"train_test_split returned 4 objects\. Pass skorch.dataset.ValidSplit"),
    ],
)
def test_a_split_that_returns_no_pair(split, message):
    with pytest.raises(ValueError, match=message):
        net(train_split=split).fit(X, Y)


def test_targets_of_other_tasks_are_left_alone():
    soft = np.full((30, 2), 0.5, "float32")
    net(train_split=None, criterion=nn.CrossEntropyLoss).fit(X, soft)
    pixels = np.tile([0, 1], (30, 1))  # every row holds one 1, and is no one-hot code
    images = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)))
    net(images, train_split=None, criterion=nn.CrossEntropyLoss).fit(X, pixels)
    halves = {"a": X[:, :1], "b": X[:, 1:]}
    assert net(Parts(3, 2)).fit(halves, Y).predict(halves).shape == (30,)


def test_rows_that_were_held_out_are_looked_at():
    from skorch.dataset import Dataset

    for rows, labels, message in (
        (X, Y + 7, "y holds the class 7, and the outputs of Linear are numbered from 0 on"),
        (X[:, :2], Y, "X has 2 features, but NeuralNetClassifier is expecting 3"),
    ):
        with pytest.raises(ValueError, match=message):
            net(train_split=predefined_split(Dataset(rows, labels))).fit(X, Y)


def test_what_is_one_hot():
    assert input_checks.is_one_hot(np.eye(3)[[0, 2, 1]])
    assert input_checks.is_one_hot(torch.eye(2, dtype=torch.int64))
    for other in (Y, np.ones((4, 1)), np.ones((4, 2)), np.full((4, 2), 0.5), [[0, 1]]):
        assert not input_checks.is_one_hot(other)


def test_a_regressor_names_both_shapes():
    with pytest.raises(ValueError, match=r"y has shape \(30, 1, 1\), .* have shape \(30, 1\)"):
        regressor().fit(X, X[:, :1, None])


@pytest.mark.parametrize(
    ("X", "error", "named"),
    [
        (DataLoader(TensorDataset(torch.ones(3, 1))), TypeError, "X is a DataLoader"),
        (None, TypeError, "X must be an array"),
        ("rows.csv", TypeError, "X must be an array"),
        (iter([1]), TypeError, "Write an IterableDataset for a stream"),
        (np.array([["a"], ["b"]]), ValueError, "X has the type <U1"),
        (np.array([["2026-11-19"]], dtype="M8[D]"), ValueError, "a module computes with numbers"),
    ],
)
def test_data_are_looked_at(X, error, named):
    with pytest.raises(error, match=named):
        input_checks.look_at_inputs(net().initialize(), X, np.zeros(2, dtype=int))
