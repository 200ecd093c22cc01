"""What cannot work is refused before training, in a sentence that says what to do."""

from __future__ import annotations

import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from accelerando import NeuralNetRegressor
from accelerando.batch_size import AdaDamp
from accelerando.compress import QSGD, ErrorFeedback, PowerSGD, TernGrad
from accelerando.estimators import _checks as checks
from accelerando.exceptions import UnsupportedError
from accelerando.sync import AllReduce, ModelAveraging, PeriodicAveraging
from tests.estimators.test_base import FakeClient
from tests.nets import MLP, classifier, regressor

AVERAGING = PeriodicAveraging(period=2)


def refused(net, data, error, message, **fit_params):
    with pytest.raises(error) as caught:
        net.fit(*data, **fit_params)
    assert type(caught.value) is error
    assert re.search(message, str(caught.value)), str(caught.value)
    assert str(caught.value).endswith(".")


PARAMETERS = [
    ({"max_batch_size": 0}, ValueError, "'max_batch_size' .* an integer of at least 1 or None"),
    ({"micro_batch_size": 0}, ValueError, "'micro_batch_size' .* Got 0 instead"),
    ({"micro_batch_size": "big"}, ValueError, r"'auto' or None \(never divide a batch\)"),
    ({"channels_last": 3}, ValueError, "'channels_last' .* True, False or 'auto'"),
    ({"examples_per_worker": 0}, ValueError, "'examples_per_worker' .* an integer of at least 1"),
    ({"min_workers": 1.5}, ValueError, "'min_workers' .* Got 1.5"),
    ({"checkpoint_every": -1}, ValueError, "'checkpoint_every' .* Got -1"),
    ({"virtual_ranks": 0}, ValueError, "'virtual_ranks' .* Got 0"),
    ({"max_workers": 0}, ValueError, r"'max_workers' .* 'auto' \(as many as pay\)"),
    (
        {"min_workers": 3, "max_workers": 2},
        ValueError,
        "'max_workers' .* at least min_workers, which is 3. Got 2 instead",
    ),
    ({"rank_timeout": 0}, ValueError, "'rank_timeout' .* above 0"),
    ({"worker_timeout": -1.0}, ValueError, "'worker_timeout' .* above 0"),
    ({"data": "scatter"}, ValueError, "'data' .* 'replicate' or 'shard'. Got 'scatter'"),
    ({"client": "tcp://a:1"}, TypeError, "'client' .* must be a distributed.Client, or None"),
    (
        {"iterator_train": list},
        UnsupportedError,
        "'iterator_train' parameter must be torch's DataLoader",
    ),
    (
        {"virtual_ranks": 2, "client": FakeClient()},
        UnsupportedError,
        "virtual_ranks=2 are ranks of this process, and with client=",
    ),
    (
        {"sync": ModelAveraging(replicas="auto")},
        UnsupportedError,
        r'ModelAveraging\(replicas="auto"\) tries how many workers',
    ),
    (
        {"sync": ModelAveraging(replicas=3), "virtual_ranks": 2},
        ValueError,
        "ModelAveraging has 3 replicas, and virtual_ranks is 2",
    ),
    ({"sync": AVERAGING}, UnsupportedError, "averages the parameters of several ranks, and here"),
    (
        {"sync": AVERAGING, "client": FakeClient(), "max_workers": 1},
        UnsupportedError,
        "max_workers=1 allows one. Leave max_workers out",
    ),
    (
        {"sync": AVERAGING, "virtual_ranks": 2, "compression": PowerSGD()},
        UnsupportedError,
        "ranks exchange differences of parameters",
    ),
    (
        {"virtual_ranks": 2, "compression": TernGrad()},
        UnsupportedError,
        "virtual ranks compute the gradient of all their rows at once",
    ),
    ({"compression": PowerSGD()}, UnsupportedError, "Pass a client, or a codec such as Atomo"),
    (
        {"compression": ErrorFeedback(TernGrad()), "optimizer": torch.optim.LBFGS},
        UnsupportedError,
        "LBFGS evaluates gradients several times in one update",
    ),
    (
        {"sync": AVERAGING, "virtual_ranks": 2, "optimizer": torch.optim.LBFGS},
        UnsupportedError,
        "LBFGS searches along a line by the loss of its batch",
    ),
    ({"random_state": -1}, ValueError, "'random_state' parameter must be None, an integer"),
    ({"virtual_ranks": 200}, ValueError, "120 training examples for 200 virtual ranks"),
    ({"batch_size": 0}, ValueError, "'batch_size'|Got 0"),
]


@pytest.mark.parametrize(("params", "error", "message"), PARAMETERS, ids=lambda v: str(v)[:60])
def test_settings_that_cannot_work_are_refused(line, params, error, message):
    net = regressor(**params)
    refused(net, line, error, message)
    state = vars(net).get("_state_")
    assert state is None or state.position.update == 0, "before the first update"


@pytest.mark.parametrize(
    "params",
    [
        {"virtual_ranks": 2, "sync": ModelAveraging(replicas=2)},
        {"sync": ModelAveraging(replicas=2)},
        {"max_workers": "auto"},
        {"micro_batch_size": None, "channels_last": True},
        {"compression": QSGD(), "optimizer": torch.optim.LBFGS, "lr": 1.0},
        {"compression": ErrorFeedback(TernGrad())},
    ],
    ids=str,
)
def test_what_works_is_not_refused(line, params):
    assert regressor(max_epochs=1, **params).fit(*line).position_.epoch == 1


# -- subclasses -----------------------------------------------------------------------------------


class OwnStep(NeuralNetRegressor):
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


class OwnEpoch(NeuralNetRegressor):
    def run_single_epoch(self, *args, **kwargs): ...


@pytest.mark.parametrize(
    ("kind", "params", "weighted", "message"),
    [
        (OwnEpoch, {}, False, "OwnEpoch overrides run_single_epoch"),
        (OwnStep, {"client": FakeClient()}, False, "ranks on a cluster could not agree"),
        (OwnStep, {"compression": TernGrad()}, False, "compression could not reach the gradient"),
        (OwnStep, {}, True, "sample_weight and class_weight cannot reach it"),
        (OwnStep, {"micro_batch_size": 5}, False, "micro_batch_size=5 would have no effect"),
        (
            OwnStep,
            {"sync": AVERAGING, "virtual_ranks": 2},
            False,
            "could not be weighed as PeriodicAveraging requires",
        ),
    ],
)
def test_overridden_methods_that_cannot_be_honored_are_refused(
    line, kind, params, weighted, message
):
    net = kind(
        nn.Linear, module__in_features=3, module__out_features=1, train_split=None, verbose=0,
        **params,
    )  # fmt: skip
    fit_params = {"sample_weight": np.ones(120)} if weighted else {}
    refused(net, line, UnsupportedError, message, **fit_params)


def test_whether_a_subclass_has_its_own_step():
    assert checks.check_overrides(OwnStep(nn.Linear), weighted=False)
    assert not checks.check_overrides(regressor(), weighted=True)


# -- optimizers -----------------------------------------------------------------------------------


class Around:
    """Steps with an optimizer that it does not show."""

    def __init__(self, params, lr):
        self.inner = torch.optim.SGD(params, lr=lr)
        self.step, self.zero_grad = self.inner.step, self.inner.zero_grad


class Hidden(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.groups = self.__dict__.pop("param_groups")


@pytest.mark.parametrize("kind", [Around, Hidden])
def test_an_optimizer_that_shows_no_groups_is_refused(line, kind):
    message = rf"{kind.__name__} has no learning rate .* Derive its class from torch.optim.Optim"
    refused(regressor(optimizer=kind), line, UnsupportedError, message)


class StepsItself(NeuralNetRegressor):
    """With an optimizer that shows nothing, or none."""

    replaced = True

    def initialize_optimizer(self):
        if self.replaced:
            super().initialize_optimizer()
            self.inner_, self.optimizer_ = self.optimizer_, Mock(spec=["step", "zero_grad"])
        return self

    def train_step(self, batch, **fit_params):
        result = self.train_step_single(batch, **fit_params)
        with torch.no_grad():
            for parameter in self.module_.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
        return result


@pytest.mark.parametrize("replaced", [True, False])
def test_an_own_step_needs_no_optimizer_that_can_be_seen(line, replaced, tmp_path):
    kind = type("Own", (StepsItself,), {"replaced": replaced})
    nets = [
        kind(
            nn.Linear, module__in_features=3, module__out_features=1, train_split=None, verbose=0,
            random_state=0,
        )
        for _ in range(2)
    ]  # fmt: skip
    net = nets[0].fit(*line)
    assert net.history[-1]["train_loss"] < net.history[0]["train_loss"]
    assert net.history_frame()["lr"].isna().all()
    if not replaced:
        net.save_state(tmp_path / "run")
        loaded = nets[1].load_state(tmp_path / "run").partial_fit(*line)
        assert loaded.position_.epoch == 2 * net.position_.epoch


def test_a_wrong_nonlinearity_is_refused_before_training(line):
    net = regressor(predict_nonlinearity="softmax")
    refused(net, line, ValueError, "'predict_nonlinearity' parameter .* a function, 'auto' or None")
    assert net.position_.update == 0


# -- data -----------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(5):
            yield torch.zeros(3), torch.zeros(1)


def test_data_that_cannot_be_used_are_refused(line):
    X, y = line
    refused(regressor(), (X[:0], y[:0]), ValueError, "There are no training examples")
    refused(
        regressor(batch_size=AdaDamp),
        (Stream(), None),
        UnsupportedError,
        "AdaDamp measures on the training set",
    )
    refused(
        regressor(),
        (Stream(), None),
        UnsupportedError,
        "an IterableDataset has no numbers",
        sample_weight=np.ones(5),
    )


def test_every_virtual_rank_needs_rows_for_batchnorm(digits):
    X, y = digits
    net = classifier(module__norm=True, virtual_ranks=4, train_split=None)
    refused(net, (X[:7], y[:7]), ValueError, "7 training examples for 4 .* each of which needs 2")


def test_batchnorm_in_micro_batches(digits):
    net = classifier(module__norm=True, micro_batch_size=20, max_epochs=1)
    with pytest.warns(UserWarning, match="statistics are those of a micro-batch of 20 rows"):
        net.fit(*digits)
    net = classifier(module__norm=True, micro_batch_size=20, client=FakeClient())
    refused(net, digits, UnsupportedError, "on a cluster BatchNorm wants the whole of it at once")


def test_weights_need_the_losses_of_rows(line):
    class Own(nn.Module):
        def forward(self, y_pred, y):
            return (y_pred - y).square().mean()

    net = regressor(criterion=Own)
    refused(net, line, UnsupportedError, "Own has no 'reduction'", sample_weight=np.ones(120))


# -- what the engine may do -----------------------------------------------------------------------


def test_which_batches_may_be_divided():
    assert checks.is_divisible(classifier().initialize())
    assert checks.splits_exactly(classifier().initialize())
    assert not checks.is_divisible(classifier(micro_batch_size=None).initialize())
    norm = classifier(MLP, module__norm=True).initialize()
    assert not checks.is_divisible(norm)
    assert not checks.splits_exactly(norm)

    class Contrast(nn.Module):
        def forward(self, y_pred, y):
            return (y_pred @ y_pred.T).square().mean()

    contrast = classifier(criterion=Contrast).initialize()
    assert not checks.is_divisible(contrast)
    assert not checks.splits_exactly(contrast)


def test_a_loss_of_a_subclass_may_couple_rows():
    class OwnLoss(NeuralNetRegressor):
        def get_loss(self, y_pred, y_true, X=None, training=False):
            return super().get_loss(y_pred, y_true, X, training)

    net = OwnLoss(nn.Linear, module__in_features=3, module__out_features=1).initialize()
    assert not checks.is_divisible(net)
    assert not checks.splits_exactly(net)


def test_what_monitors_know_about_a_fit():
    net = regressor()
    setting = checks.monitor_setting(net, AllReduce(), divisible=True, compressed=False)
    assert setting == (False, True, False, False)
    net.client = FakeClient()
    setting = checks.monitor_setting(net, AVERAGING, divisible=False, compressed=True)
    assert setting == (True, False, True, True)
    net.max_workers = 1
    assert not checks.monitor_setting(net, AVERAGING, divisible=False, compressed=True)[0]


def test_ranks_of_this_process():
    assert checks.ranks_here(regressor(virtual_ranks=3), AllReduce()) == 3
    assert checks.ranks_here(regressor(), ModelAveraging(replicas=4)) == 4
    assert checks.ranks_here(regressor(client=FakeClient()), ModelAveraging(replicas=4)) == 1
