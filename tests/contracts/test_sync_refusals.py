"""Settings of ``sync=`` that cannot work are refused before training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerando.compress import QSGD, PowerSGD
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import GradientNoiseScale
from accelerando.sync import ModelAveraging, PeriodicAveraging
from tests.nets import MLP, classifier


class Cluster:
    """What is asked of a client before anything is sent to it."""

    def scheduler_info(self):
        raise AssertionError("nobody should ask")


class OwnStep(type(classifier())):
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"sync": 4}, TypeError, "'sync' parameter must be a strategy of accelerando.sync"),
        ({"sync": None, "sync__period": 4}, ValueError, "but sync=None"),
        ({"sync": PeriodicAveraging}, ValueError, "needs more sync__x parameters"),
        ({"sync": PeriodicAveraging, "sync__p": 4}, ValueError, "has no parameter 'p'"),
        ({"sync": PeriodicAveraging(4), "sync__p": 4}, ValueError, "has no parameter 'p'"),
        ({"virtual_ranks": 0}, ValueError, "'virtual_ranks' parameter .* an integer"),
        ({"virtual_ranks": 1}, UnsupportedError, "here there is one"),
        ({"virtual_ranks": 1000}, ValueError, "training examples for 1000 virtual ranks"),
        ({"sync": ModelAveraging(3)}, ValueError, "has 3 replicas, and virtual_ranks is 4"),
        (
            {"virtual_ranks": 1, "client": Cluster(), "max_workers": 1},
            UnsupportedError,
            "allows one",
        ),
        (
            {"sync": ModelAveraging("auto"), "virtual_ranks": 1},
            UnsupportedError,
            "pay, and here there",
        ),
        ({"sync": None, "client": Cluster()}, UnsupportedError, "are workers of the cluster"),
        ({"compression": PowerSGD()}, UnsupportedError, "ranks exchange differences of parameters"),
        ({"sync": None, "compression": QSGD()}, UnsupportedError, "of all their rows at once"),
        ({"monitors": [GradientNoiseScale()]}, UnsupportedError, "own parameters"),
        ({"optimizer": torch.optim.LBFGS}, UnsupportedError, "LBFGS searches along a line"),
    ],
)
def test_what_cannot_work_is_said(params, error, message, digits):
    settings = {"sync": PeriodicAveraging(2), "virtual_ranks": 4, **params}
    with pytest.raises(error, match=message):
        classifier(**settings).fit(*digits)


def test_a_train_step_of_ones_own_is_refused(digits):
    net = OwnStep(MLP, criterion=nn.CrossEntropyLoss, sync=PeriodicAveraging(2), virtual_ranks=2)
    with pytest.raises(UnsupportedError, match="has its own train_step"):
        net.fit(*digits)
