"""What is wrong with components, names and evaluated batches is said in a sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.estimators._explain import (
    check_callback_names,
    check_device,
    check_names,
    explain_components,
    explain_evaluation,
)
from accelerando.exceptions import InputError
from tests.nets import classifier, regressor

ERROR = RuntimeError("PyTorch's own words")


class Odd(nn.Module):
    def __init__(self, inputs):
        super().__init__()


@pytest.mark.parametrize(
    ("params", "error", "named"),
    [
        ({"module": 3}, ERROR, "'module' parameter .* Got 3"),
        ({"criterion": "auto"}, ERROR, None),
        ({"criterion": "mse"}, ERROR, "'criterion' parameter .* Got 'mse'"),
        ({"criterion": 0.5}, ERROR, "'criterion' parameter .* Got 0.5"),
        ({"optimizer": "sgd"}, ERROR, "'optimizer' parameter .* Got 'sgd'"),
        ({"module": Odd}, TypeError("missing 1 argument"), r"module=Odd needs more module__x"),
        ({"module": Odd, "module__inputs": 2}, TypeError("something else"), None),
        ({}, ValueError("optimizer got an empty parameter list"), "has no parameters"),
        ({"optimizer": torch.optim.SGD}, TypeError("unexpected keyword argument 'lr'"), "no learn"),
        ({"callbacks": [3]}, ERROR, "'callbacks' parameter .* Got 3"),
    ],
)
def test_components_that_cannot_be_made(params, error, named):
    net = NeuralNetClassifier(**{"module": nn.ReLU, "criterion": nn.MSELoss, **params})
    if named is None:  # nothing is known about it: the error stays what it is
        explain_components(net, error)
        return
    with pytest.raises((TypeError, ValueError), match=named):
        explain_components(net, error)


def test_an_instance_of_an_optimizer_is_no_class():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises((TypeError, ValueError), match="not an instance"):
        explain_components(NeuralNetClassifier(nn.ReLU, optimizer=optimizer), ERROR)


@pytest.mark.parametrize("device", ["cuda:93", "nowhere", "meta"])
def test_a_device_that_cannot_compute(device):
    with pytest.raises((TypeError, ValueError), match=f"'device' parameter .* Got '{device}'"):
        check_device(classifier(device=device))


def test_names_are_compared_with_those_that_exist():
    with pytest.raises(ValueError, match=r"Linear has no parameter 'in_feature'.*'in_features'"):
        check_names("module", nn.Linear, {"in_feature": 3})
    check_names("module", nn.Linear, {"in_features": 3})
    check_names("module", lambda **anything: None, {"whatever": 3})
    net = classifier(callbacks__prnt_log=None)
    with pytest.raises(ValueError, match=r"no callback 'prnt_log'.*'print_log'"):
        check_callback_names(net, ["epoch_timer", "print_log"])


# -- batches that are evaluated --------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(30, 3)).astype("float32")
Y = np.arange(30) % 2
IMAGES = np.zeros((30, 8, 8, 3), "float32")


def convolutions(channels=3):
    layers = nn.Conv2d(channels, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return classifier(nn.Sequential(*layers), max_epochs=1)


def test_errors_of_predictions_are_those_of_training():
    net = convolutions().fit(np.moveaxis(IMAGES, -1, 1), Y)
    for method in (net.predict, net.predict_proba, net.forward):
        with pytest.raises(InputError, match=r"Sequential cannot compute .* Pass np.moveaxis"):
            method(IMAGES)


def test_one_image_is_no_batch():
    net = convolutions().fit(np.moveaxis(IMAGES, -1, 1), Y)
    with pytest.raises(ValueError, match=r"X has shape \(3, 8, 8\), .* 4 dim.* X\[np.newaxis\]"):
        net.predict(np.moveaxis(IMAGES, -1, 1)[0])
    with pytest.raises(ValueError, match=r"X has shape \(30, 192\), and .* with 4 dimensions"):
        net.partial_fit(IMAGES.reshape(30, -1), Y)


def test_the_dimensions_of_images_are_saved(tmp_path):
    net = convolutions().fit(np.moveaxis(IMAGES, -1, 1), Y)
    net.save_state(tmp_path / "run")
    loaded = convolutions().load_state(tmp_path / "run")
    with pytest.raises(ValueError, match="fitted with 4 dimensions"):
        loaded.predict(IMAGES[0])
    assert loaded.predict(np.moveaxis(IMAGES, -1, 1)).shape == (30,)


def test_errors_of_callbacks_are_left_alone():
    class Fail(Callback):
        def on_epoch_end(self, net, **kwargs):
            raise RuntimeError("wrong size")

    with pytest.raises(RuntimeError, match=r"^wrong size$"):
        regressor(callbacks=[Fail()]).fit(X, X[:, 0])


def test_an_error_without_an_evaluation_is_left_alone():
    explain_evaluation(regressor(), ValueError("size"))


@pytest.mark.parametrize(
    ("name", "says", "notes"),
    [
        ("batch_sizes", "unexpected argument batch_sizes.", ["'batch_size' instead of"]),
        ("iterator_train_shuffle", "did you mean iterator_train__shuffle?", ["instead of"]),
    ],
)
def test_no_parameter_is_proposed_that_does_not_exist(name, says, notes):
    with pytest.raises(ValueError, match="Got an unexpected argument") as caught:
        classifier(**{name: True}).initialize()
    assert str(caught.value).endswith(says)
    assert "batch_size__s" not in str(caught.value)
    for note, words in zip(caught.value.__notes__, notes, strict=True):
        assert words in note
