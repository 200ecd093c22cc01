"""The first error of a newcomer says what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

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


def items_of(X, y):
    """Return a data set, whose items are not converted."""
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(y))


def test_double_precision_data(line):
    X, y = line
    with pytest.raises(ValueError, match=r"float64 of shape \(\d+, 3\).* layer is Linear\(in_fea"):
        regressor().fit(items_of(X.astype("float64"), y), None)


def test_another_number_of_features(line):
    X, y = line
    with pytest.raises(ValueError, match=r"Linear cannot compute a batch of X, .*in_features=3"):
        regressor().fit(X[:, :2], y)


def test_short_integers_as_classes(digits):
    X, y = digits
    with pytest.raises(ValueError, match=r"CrossEntropyLoss cannot compare .*y, which is int16"):
        classifier(train_split=None).fit(items_of(X, y.astype("int16")), None)


def test_errors_of_users_keep_their_type(line):
    class Own(nn.Linear):
        def forward(self, x):
            raise RuntimeError("mine")

    X, y = line
    with pytest.raises(RuntimeError, match=r"^mine$"):
        regressor(Own, module__in_features=3, module__out_features=1).fit(X, y)


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
