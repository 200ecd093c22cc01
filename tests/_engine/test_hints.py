"""The first error of a newcomer says what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.nets import classifier, regressor


def notes_of(caught):
    return " ".join(getattr(caught.value, "__notes__", []))


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
