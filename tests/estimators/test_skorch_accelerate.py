"""skorch's AccelerateMixin with our estimators: as with skorch's, in this process."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import skorch
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from skorch.callbacks import LRScheduler
from skorch.hf import AccelerateMixin
from torch import nn

import accelerando
from accelerando.batch_size import GeoDamp
from accelerando.exceptions import UnsupportedError
from tests.nets import parameters_of

X = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


class Theirs(AccelerateMixin, skorch.NeuralNetClassifier):
    pass


class Ours(AccelerateMixin, accelerando.NeuralNetClassifier):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


@pytest.fixture(autouse=True)
def _forget_the_accelerator():
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def net_of(kind=Ours, *, precision="no", steps=1, **params):
    settings = {"lr": 0.1, "max_epochs": 3, "batch_size": 32, "verbose": 0}
    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=steps
    )
    settings |= {"callbacks__print_log__sink": str, "accelerator": accelerator}
    return kind(**{"module": Net, **settings, **params})


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("steps", [1, 2])
def test_parameters_are_those_of_skorch(precision, steps):
    found, start = [], Net()
    for kind in (Theirs, Ours):
        AcceleratorState._reset_state()
        net = net_of(
            kind,
            module=deepcopy(start),
            precision=precision,
            steps=steps,
            criterion=nn.CrossEntropyLoss,
            iterator_train__shuffle=False,
            callbacks=[LRScheduler("StepLR", step_size=2)],
        )
        found.append(net.fit(X, Y))
    theirs, ours = found
    assert torch.equal(parameters_of(ours), parameters_of(theirs))
    assert ours.history[:, "valid_loss"] == theirs.history[:, "valid_loss"]
    assert ours.history[:, "event_lr"] == theirs.history[:, "event_lr"]
    assert np.array_equal(ours.predict(X), theirs.predict(X))


def test_rows_are_shuffled_by_random_state():
    shuffled, again = net_of(random_state=0).fit(X, Y), net_of(random_state=0).fit(X, Y)
    ordered = net_of(random_state=0, iterator_train__shuffle=False).fit(X, Y)
    assert torch.equal(parameters_of(shuffled), parameters_of(again))
    assert not torch.equal(parameters_of(shuffled), parameters_of(ordered))
    assert type(shuffled.criterion_) is nn.CrossEntropyLoss
    assert len(shuffled.partial_fit(X, Y).history) == 6


def test_a_run_is_saved_and_continued(tmp_path):
    net = net_of(random_state=0, checkpoint=tmp_path / "run").fit(X, np.where(Y, "yes", "no"))
    net.save_state(tmp_path / "state.pt")
    loaded = net_of(random_state=0).load_state(tmp_path / "state.pt")
    assert np.array_equal(loaded.predict(X), net.predict(X))
    names = np.where(Y, "yes", "no")
    assert torch.equal(
        parameters_of(loaded.partial_fit(X, names)), parameters_of(net.partial_fit(X, names))
    )


def test_what_accelerate_cannot_do_is_refused(client):
    with pytest.raises(UnsupportedError, match=r"trained by Accelerate.* pass client=None"):
        net_of(client=client).fit(X, Y)
    with pytest.raises(UnsupportedError, match="policy could not change"):
        net_of(batch_size=GeoDamp()).fit(X, Y)
    with pytest.raises(UnsupportedError, match="sample_weight"):
        net_of().fit(X, Y, sample_weight=np.ones(len(X)))
