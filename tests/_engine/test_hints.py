"""The first error of a newcomer says what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from accelerando._engine.hints import explain
from tests.nets import classifier, regressor

FLOAT, DOUBLE = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64)


def notes_of(caught):
    return " ".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize(
    ("error", "batch", "hints"),
    [
        (RuntimeError(), (DOUBLE, FLOAT), ["X has the type float64 and the module's parameters"]),
        (RuntimeError(), (FLOAT, DOUBLE), ["y has the type float64"]),
        (RuntimeError(), ({"a": FLOAT, "b": DOUBLE}, FLOAT), ["try X.astype('float32')"]),
        (RuntimeError(), (FLOAT, torch.zeros(2, dtype=torch.int32)), ["y has the type int32"]),
        (TypeError(), ({"a": FLOAT, "b": FLOAT}, FLOAT), ["keyword arguments of forward: a, b."]),
        (RuntimeError(), (FLOAT, torch.zeros(2, dtype=torch.int64)), []),
        (RuntimeError(), FLOAT, []),
        (TypeError(), (FLOAT, FLOAT), []),
    ],
)
def test_the_hint_follows_the_batch(error, batch, hints):
    explain(error, batch, nn.Linear(3, 1))
    notes = getattr(error, "__notes__", [])
    assert len(notes) == len(hints)
    assert all(hint in note for hint, note in zip(hints, notes, strict=True))


def test_a_module_without_parameters_needs_no_type():
    error = RuntimeError()
    explain(error, (torch.zeros(2, dtype=torch.int64), None), nn.ReLU())
    assert not hasattr(error, "__notes__")


def test_double_precision_data(line):
    X, y = line
    with pytest.raises(RuntimeError) as caught:
        regressor().fit(X.astype("float64"), y)
    assert "try X.astype('float32')" in notes_of(caught)


def test_short_integers_as_classes(digits):
    X, y = digits
    with pytest.raises(RuntimeError) as caught:
        classifier().fit(X, y.astype("int32"))
    assert "try y.astype('int64')" in notes_of(caught)


def test_a_frame_is_passed_by_column(line):
    X, y = line
    with pytest.raises(TypeError) as caught:
        regressor().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    assert "keyword arguments of forward: a, b, c" in notes_of(caught)


@pytest.mark.parametrize("kind", [np.array, pd.Series])
def test_names_as_classes(digits, kind):
    X, y = digits
    with pytest.raises(ValueError, match="LabelEncoder"):
        classifier().fit(X, kind([f"digit {label}" for label in y]))


def test_errors_of_later_updates_are_left_alone(line):
    from skorch.callbacks import Callback

    class Fail(Callback):
        def on_grad_computed(self, net, named_parameters, **kwargs):
            if net.position_.update == 2:
                raise RuntimeError("late")

    with pytest.raises(RuntimeError, match="late") as caught:
        regressor(callbacks=[Fail()]).fit(*line)
    assert notes_of(caught) == ""


def test_no_epochs_is_no_training(line):
    net = regressor(max_epochs=0).fit(*line)
    assert len(net.history_frame()) == len(net.updates_frame()) == 0
    assert net.predict(line[0]).shape == (120, 1)
