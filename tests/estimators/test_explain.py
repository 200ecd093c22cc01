"""Components that cannot be made, and batches that cannot be evaluated, end in a sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn

from accelerando.estimators import _explain
from accelerando.exceptions import InputError
from tests.nets import MLP, classifier, regressor

X = np.random.default_rng(0).normal(size=(30, 3)).astype("float32")
Y = np.arange(30) % 2
IMAGES = np.zeros((30, 8, 8, 3), "float32")


def test_a_component_that_cannot_be_made_is_named():
    net = classifier(MLP, module__hiden=3)
    with pytest.raises(ValueError, match=r"MLP has no parameter 'hiden'\. Did you mean 'hidden'"):
        net.initialize()
    with pytest.raises(ValueError, match=r"'optimizer' parameter .* \(not an instance"):
        classifier(MLP, optimizer=torch.optim.SGD(MLP().parameters())).initialize()
    with pytest.raises(ValueError, match=r"module=Linear needs more module__x parameters"):
        classifier(nn.Linear).initialize()


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
    _explain.explain_evaluation(regressor(), ValueError("size"))
