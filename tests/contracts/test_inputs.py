"""What users pass as X and y is learned like the arrays it stands for, here and on ranks.

A row is a kind of input. Its net has the parameters of a net that was fitted with float32 features
and classes 0, 1, 2, and its predictions are in the terms of the row.
"""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import IterableDataset

from accelerando import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from accelerando.batch_size import GeoDamp
from accelerando.exceptions import UnsupportedError
from tests.nets import parameters_of

rng = np.random.default_rng(0)
X = rng.integers(-3, 4, size=(120, 4)).astype("float32")
Y = np.argmax(X[:, :3], axis=1)
NAMES = np.array(["ant", "bee", "cat"])


class Net(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, x):
        return self.layer(x)


class Columns(Net):
    def forward(self, a, b, c, d):
        return self.layer(torch.cat([a, b, c, d], dim=1))


def frame():
    return pd.DataFrame(X, columns=list("abcd"))


ROWS = {
    "float64": (X.astype("float64"), Y, Y),
    "int32": (X.astype("int32"), Y.astype("int32"), Y),
    "list": (X.tolist(), Y.tolist(), Y),
    "object": (X.astype(object), Y, Y),
    "float64 tensor": (torch.tensor(X, dtype=torch.float64), torch.tensor(Y), Y),
    "frame": (frame(), pd.Series(Y), Y),
    "sparse": (sparse.csr_matrix(X.astype("float64")), Y, Y),
    "sparse without rows": (sparse.coo_matrix(X), Y, Y),
    "foreign bytes": (X.astype(">f4"), Y.astype(">i8"), Y),
    "names": (X, NAMES[Y], NAMES[Y]),
    "list of names": (X, NAMES[Y].tolist(), NAMES[Y]),
    "category": (X, pd.Series(NAMES[Y], dtype="category"), NAMES[Y]),
    "gaps": (X, 10 * Y - 7, 10 * Y - 7),
    "floating classes": (X, Y.astype("float64"), Y),
    "column": (frame(), NAMES[Y].reshape(-1, 1), NAMES[Y]),
}


def fit(X, y, kind=NeuralNetClassifier, module=Net, **params):
    settings = {"lr": 0.1, "max_epochs": 3, "batch_size": 32, "random_state": 0, "verbose": 0}
    return kind(module, **{**settings, **params}).fit(X, y)


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("row", ROWS)
def test_a_kind_of_input_is_what_it_stands_for(row):
    features, targets, expected = ROWS[row]
    plain, net = fit(X, Y), fit(features, targets)
    assert torch.equal(parameters_of(net), parameters_of(plain))
    assert np.array_equal(net.classes_[plain.predict(X)], net.predict(features))
    assert net.score(features, expected) == plain.score(X, Y)
    assert net.history[-1]["valid_acc"] == plain.history[-1]["valid_acc"]
    assert net.n_features_in_ == 4


ON_RANKS = ["float64", "frame", "names", "gaps", "list", "sparse without rows", "foreign bytes"]


@pytest.mark.parametrize("row", ON_RANKS)
def test_ranks_compute_the_same(row, client):
    features, targets, _ = ROWS[row]
    net = fit(features, targets, client=client, min_workers=2, max_workers=2)
    assert net.updates_frame()["ranks"].max() == 2
    assert isinstance(net.criterion_, nn.CrossEntropyLoss)
    assert torch.allclose(parameters_of(net), parameters_of(fit(X, Y)), atol=1e-6)
    assert np.array_equal(net.predict(features), fit(features, targets).predict(features))


def test_what_is_no_rows_is_refused_alike_by_predictions_on_workers(client):
    nets = [fit(X, Y, max_epochs=1, client=where) for where in (client, None)]
    for rows in (None, "abc", np.full((4, 4), "a")):
        sentences = []
        for net in nets:
            with pytest.raises((TypeError, ValueError), match=r"X must be|X has the type") as error:
                net.predict(rows)
            sentences.append(str(error.value))
        assert sentences[0] == sentences[1]


def test_columns_are_arguments_of_forward_if_it_has_them():
    net = fit(frame(), Y, module=Columns)
    assert torch.equal(parameters_of(net), parameters_of(fit(X, Y)))
    assert list(net.feature_names_in_) == list("abcd")


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("where", ["here", "ranks"])
def test_one_output_fits_one_value_per_row(shape, where, request):
    ranks = (
        {"client": request.getfixturevalue("client"), "min_workers": 2} if where != "here" else {}
    )
    y = (X @ [1.0, 2.0, 3.0, 4.0]).reshape(shape)
    net = fit(X, y, NeuralNetRegressor, module__outputs=1, lr=0.05, max_epochs=30, **ranks)
    assert net.predict(X).shape == y.shape
    assert net.score(X, y) > 0.99


@pytest.mark.parametrize("where", ["here", "ranks"])
def test_two_classes_of_a_binary_classifier(where, request):
    ranks = (
        {"client": request.getfixturevalue("client"), "min_workers": 2} if where != "here" else {}
    )
    y = np.where(X[:, 0] > 0, "yes", "no")
    net = fit(X, y, NeuralNetBinaryClassifier, module__outputs=1, max_epochs=20, **ranks)
    assert list(net.classes_) == ["no", "yes"]
    assert net.score(X, y) > 0.95
    assert net.predict_proba(X).shape == (120, 2)
    with pytest.raises(ValueError, match=r"Only binary classification .* y has 3 classes"):
        fit(X, Y, NeuralNetBinaryClassifier, module__outputs=1)


SHARDS = {"data": "shard", "train_split": None, "min_workers": 2, "max_workers": 2}


class Soft(Net):
    def forward(self, x):
        return super().forward(x).softmax(1)


@pytest.mark.parametrize(("module", "criterion"), [(Net, nn.CrossEntropyLoss), (Soft, nn.NLLLoss)])
def test_chunks_tell_the_criterion_and_are_converted(module, criterion, client):
    parts = da.from_array(X.astype("float64"), chunks=(40, 4)), da.from_array(Y, chunks=40)
    net = fit(*parts, module=module, client=client, **SHARDS)
    assert type(net.criterion_) is criterion
    plain = [da.from_array(part, chunks=40) for part in (X, Y)]
    explicit = fit(*plain, module=module, client=client, criterion=criterion, **SHARDS)
    assert torch.allclose(parameters_of(net), parameters_of(explicit), atol=1e-6)
    assert np.allclose(net.predict_proba(X).sum(1), 1, atol=1e-5)
    assert net.n_features_in_ == 4


def test_chunks_of_one_value_per_row(client):
    y = X @ [1.0, 2.0, 3.0, 4.0]
    settings = {"module__outputs": 1, "lr": 0.05, "max_epochs": 30, "client": client, **SHARDS}
    parts = da.from_array(X, chunks=(40, 4)), da.from_array(y, chunks=40)
    net = fit(*parts, NeuralNetRegressor, **settings)
    assert net.predict(X).shape == y.shape
    assert net.score(X, y) > 0.99


def test_chunks_keep_their_classes(client):
    parts = da.from_array(X, chunks=(40, 4)), da.from_array(10 * Y - 7, chunks=40)
    with pytest.raises(UnsupportedError, match=r'The classes in y .*data="shard" leaves y'):
        fit(*parts, client=client, **SHARDS)


def test_ranks_do_not_guess_the_criterion_of_a_stream(client):
    class Stream(IterableDataset):
        def __iter__(self):
            return zip(X, Y, strict=True)

    settings = {"train_split": None, "client": client, "min_workers": 2, "max_workers": 2}
    with pytest.raises(UnsupportedError, match=r'criterion="auto" looks .* a Stream .* Pass crit'):
        fit(Stream(), None, **settings)
    net = fit(Stream(), None, criterion=nn.CrossEntropyLoss, **settings)
    assert net.history[-1]["train_loss"] < net.history[0]["train_loss"]


class Batches(torch.utils.data.Dataset):
    """Whole batches of rows, for a loader that makes none."""

    def __len__(self):
        return 5

    def __getitem__(self, number):
        return X[24 * number : 24 * number + 24], Y[24 * number : 24 * number + 24]


class Sharded(IterableDataset):
    """Whole batches, and a method that divides rows among ranks."""

    def __iter__(self):
        return self.shard(0, 1)

    def shard(self, rank, size):
        return iter([(X[:24], Y[:24])])


NO_BATCHES = {
    "arrays": ((X, Y), {"iterator_train__batch_size": None}),
    "a policy": ((X, Y), {"iterator_train__batch_size": None, "batch_size": GeoDamp(8)}),
    "whole batches": ((Batches(), None), {"iterator_train__batch_size": None}),
    "shards": ((Sharded(), None), {"iterator_train__batch_size": None}),
    "validation": ((X, Y), {"iterator_valid__batch_size": None}),
}


@pytest.mark.parametrize("where", ["here", "one rank", "two ranks"])
@pytest.mark.parametrize("row", NO_BATCHES)
def test_a_loader_that_makes_no_batches_is_refused_before_training(row, where, request):
    ranks = {"here": 0, "one rank": 1, "two ranks": 2}[where]
    client = request.getfixturevalue("client") if ranks else None
    data, params = NO_BATCHES[row]
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "client": client}
    counts = {"min_workers": max(1, ranks), "max_workers": ranks or None}
    with pytest.raises(UnsupportedError, match=r"_batch_size=None is for .* leave the parameter"):
        fit(*data, **settings, **counts, **params)
