"""The first error of a newcomer says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from accelerando import NeuralNet
from accelerando._engine.hints import explain
from accelerando.exceptions import NotFiniteError
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


class Channels(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layer = nn.Conv2d(channels, 2, 3)

    def forward(self, x):
        return self.layer(x).mean((2, 3))


@pytest.mark.parametrize(
    ("channels", "shape", "remedy"),
    [
        (3, (40, 8, 8, 3), r"X has its channels last\. Pass np.moveaxis\(X, -1, 1\)"),
        (1, (40, 8, 8), r"X has no dimension for the channel\. Pass X\[:, np.newaxis\]"),
        (3, (40, 192), "Change the layer to the number of features"),
    ],
)
def test_images_of_another_shape(channels, shape, remedy):
    net = classifier(Channels(channels), max_epochs=1)
    with pytest.raises(ValueError, match=rf"batch of X, which is float32 .*Conv2d.* {remedy}"):
        net.fit(np.zeros(shape, "float32"), np.arange(40) % 2)


def test_the_shape_of_the_outputs_is_in_the_sentence():
    X, y = np.zeros((40, 1, 3), "float32"), np.arange(40) % 2
    expected = r"outputs of Linear, which are float32 of shape \(\d+, 1, 2\), with y, which is int"
    with pytest.raises(ValueError, match=expected):
        classifier(nn.Linear(3, 2), max_epochs=1).fit(X, y)


def test_an_error_inside_of_forward_gets_the_shape_of_the_batch():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x.view(7, -1, 3))

    with pytest.raises(RuntimeError) as caught:
        classifier(Own(3, 2), max_epochs=1).fit(np.zeros((40, 3), "float32"), np.arange(40) % 2)
    assert "The batch of X is float32 of shape (" in notes_of(caught)


def test_one_array_for_two_arguments():
    class Own(nn.Linear):
        def forward(self, left, right):
            return super().forward(left)

    message = r"forward missing .* X is float32 of .* dictionary, \{'left': …, 'right': …\}"
    with pytest.raises(TypeError, match=message):
        classifier(Own(3, 2), max_epochs=1).fit(np.zeros((40, 3), "float32"), np.arange(40) % 2)


def test_several_outputs_without_an_own_loss():
    X = np.zeros((40, 5, 3), "float32")
    with pytest.raises(ValueError, match=r"LSTM\.forward returned a tuple"):
        classifier(nn.LSTM(3, 2), criterion="auto", max_epochs=1).fit(X, np.arange(40) % 2)


def test_logits_for_a_loss_of_probabilities():
    X, y = np.full((40, 3), 9, "float32"), np.ones((40, 1), "float32")
    net = NeuralNet(nn.Linear(3, 1), criterion=nn.BCELoss, train_split=None, verbose=0)
    net.initialize().module_.bias.data.fill_(50.0)
    with pytest.raises(ValueError, match=r"not between 0 and 1\. Pass .*BCEWithLogitsLoss"):
        net.partial_fit(X, y)


@pytest.mark.parametrize(("name", "scales"), [("y", (1, 1e30)), ("X", (1e25, 1))])
def test_values_whose_square_is_too_large_are_named(line, name, scales):
    X, y = (data * scale for data, scale in zip(line, scales, strict=True))
    with pytest.raises(NotFiniteError, match=rf"{name} holds values as large as \d.*Scale {name}"):
        regressor().fit(X.astype("float32"), y.astype("float32"))
