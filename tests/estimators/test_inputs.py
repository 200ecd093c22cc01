"""Conversions of X, one by one; ``tests/contracts/test_inputs.py`` has the table of inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.estimators import _inputs as inputs
from tests.nets import classifier, regressor


@pytest.mark.parametrize(
    ("array", "wanted", "expected"),
    [
        (np.zeros(2), torch.float32, "float32"),
        (np.zeros(2, "int8"), torch.int64, "int64"),
        (np.zeros(2, bool), torch.float32, "float32"),
        (np.zeros(2), torch.int64, "float64"),
        (torch.zeros(2), torch.bfloat16, "torch.bfloat16"),
        (np.zeros(2), torch.bfloat16, "torch.bfloat16"),
    ],
)
def test_casting_never_drops_fractions(array, wanted, expected):
    assert str(inputs.cast(array, wanted).dtype) == expected


def test_what_fits_is_not_copied():
    array = np.zeros((2, 2), "float32")
    assert inputs.cast(array, torch.float32) is array


def test_integers_of_an_embedding_stay_integers():
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    X, y = np.arange(60).reshape(20, 3) % 5, np.arange(20) % 2
    for kind in ("int64", "int32", "uint8"):
        net = classifier(module, max_epochs=1).fit(X.astype(kind), y)
        assert net.predict(X.astype(kind)).shape == (20,)


def test_integers_that_the_module_accepts_stay_integers():
    seen = set()

    class Own(nn.Linear):
        def forward(self, x):
            seen.add(x.dtype)
            return super().forward(x.float())

    X = np.arange(60).reshape(20, 3) % 5
    net = classifier(Own(3, 2), max_epochs=1).fit(X, np.arange(20) % 2)
    net.predict(X)
    assert seen == {torch.int64}


def test_predictions_check_features():
    X, y = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2
    net = NeuralNetClassifier(nn.Linear(3, 2), max_epochs=1, verbose=0)
    assert not hasattr(net, "n_features_in_")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    net.fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        net.predict(frame.rename(columns={"a": "z"}))
    net.fit(X, y)
    assert not hasattr(net, "feature_names_in_")
    with pytest.raises(ValueError, match="X has 2 features, but NeuralNetClassifier"):
        net.partial_fit(X[:, :2].astype("float32"), y)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (
            pd.DataFrame({"a": [1.0] * 9, "b": ["x"] * 9, "c": [1] * 9}),
            "The columns b of X hold no",
        ),
        (np.ones((9, 3), complex), "Complex data not supported: X"),
        (np.ones((9, 0)), r"0 feature\(s\) \(shape=\(9, 0\)\)"),
    ],
)
def test_what_is_no_number_is_refused(X, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(X, np.ones(9))


def test_a_large_map_of_a_file_is_not_read(tmp_path, monkeypatch):
    mapped = np.memmap(tmp_path / "x", "float64", "w+", shape=(20, 3))
    assert inputs.cast(mapped, torch.float32).dtype == np.float32
    monkeypatch.setattr(inputs, "LARGEST_COPY", 10)
    with pytest.raises(ValueError, match="converting it would read all of it"):
        regressor().fit(mapped, np.ones(20))


def test_inputs_are_converted_once_per_fit(monkeypatch):
    X, y = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2 == 0
    kinds = {"float64": X, "int32": (9 * X).astype("int32"), "frame": pd.DataFrame(X)}
    real, seen = inputs.cast, []

    def counted(leaf, wanted):
        found = real(leaf, wanted)
        if found is not leaf:
            seen.append(len(leaf))
        return found

    monkeypatch.setattr(inputs, "cast", counted)
    for features in kinds.values():
        for epochs in (1, 4):
            seen.clear()
            regressor(max_epochs=epochs, batch_size=8).fit(features, y)
            assert seen.count(40) == 1  # and a few rows, to ask the module what it computes with
            assert len(seen) <= 3
