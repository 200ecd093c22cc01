"""Updates that fail leave the last finite model, and say what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerando._engine import step as steps
from accelerando._engine.comm.communicator import SingleProcess
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando.exceptions import NotFiniteError
from tests._engine.fits import data, plain_fit, plain_model, weights_of
from tests._engine.test_step import a_batch, a_plan


def with_nan():
    X, y = data()
    X[5] = float("nan")
    return X, y


def test_a_loss_that_is_not_finite_says_where_and_what_to_do():
    fit = plain_fit(arrays=with_nan())
    fit.state.position.update, fit.state.position.epoch = 3, 1
    before = weights_of(fit)
    message = (
        r"The loss is nan at update 4 \(epoch 2\) with batch size 24 and lr 0.025\. The estimator "
        r"holds the parameters of update 3, the last finite ones\. X holds nan or inf in 1 "
        r"of the 24 rows of this batch"
    )
    with pytest.raises(NotFiniteError, match=message):
        steps.update(fit, a_plan(lr_scale=0.5), a_batch(fit))
    assert torch.equal(weights_of(fit), before)


def test_a_gradient_that_is_not_finite_is_noticed():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return (self.weight * 0 * x[:, :1]).abs().sqrt()

    fit = plain_fit(plain_model(Root()))
    with pytest.raises(NotFiniteError, match="gradient's norm is nan at update 1"):
        steps.update(fit, a_plan(), a_batch(fit))


def test_statistics_of_batchnorm_are_taken_back():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    fit = plain_fit(plain_model(module), with_nan())
    with pytest.raises(NotFiniteError):
        steps.update(fit, a_plan(), a_batch(fit))
    assert module[0].running_mean.tolist() == [0.0, 0.0, 0.0]
    assert module[0].num_batches_tracked == 0


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("lr", [1e38, float("inf"), float("nan")])
def test_a_step_that_overflows_is_taken_back(optimizer, lr):
    fit = plain_fit(plain_model(optimizer=optimizer))
    fit.model.optimizers[0].param_groups[0]["lr"] = lr
    before = weights_of(fit)
    with pytest.raises(NotFiniteError):
        for _ in range(3):
            steps.update(fit, a_plan(), a_batch(fit))
            before = weights_of(fit)
    assert bool(before.isfinite().all())
    assert torch.equal(weights_of(fit), before)


def test_a_usual_step_copies_nothing(monkeypatch):
    fit = plain_fit()
    copies = []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda t, **kw: copies.append(t) or clone(t, **kw))
    steps.update(fit, a_plan(), a_batch(fit))
    assert copies == []


def test_where_ranks_average_the_last_average_is_kept():
    fit = plain_fit(arrays=with_nan())
    fit.state.replicas = ReplicaSet(fit.model.components, here=2)
    fit.state.position.update, fit.state.averaging.since = 7, 3
    with pytest.raises(NotFiniteError, match="holds the average of update 4, the last one"):
        steps.update(fit, a_plan(), a_batch(fit))


class Failing(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.error = error

    def forward(self, x):
        raise self.error


class Noting(SingleProcess):
    abandoned = 0

    def abandon_update(self, state):
        self.abandoned += 1


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2"), KeyboardInterrupt()])
def test_what_is_in_flight_is_abandoned_whatever_happens(error):
    fit = plain_fit(plain_model(Failing(error)), comm=Noting())
    with pytest.raises(type(error)):
        steps.update(fit, a_plan(), a_batch(fit))
    assert fit.comm.abandoned == 1


@pytest.mark.parametrize("update", [0, 1])
def test_errors_of_an_update_have_a_hint(update):
    X, y = data()
    fit = plain_fit(plain_model(Failing(RuntimeError("dtype"))), (X.double(), y))
    fit.state.position.update = update
    with pytest.raises(RuntimeError) as caught:
        steps.update(fit, a_plan(), a_batch(fit))
    batch, dtype = caught.value.__notes__  # once each
    assert batch == "The batch of X is float64 of shape (24, 3)."
    assert "try X.astype('float32')" in dtype


# -- the training step of a subclass --------------------------------------------------------------


class WithStep:
    """A plain model whose training step is the user's."""

    def __init__(self, factor=1.0):
        self.__dict__.update(vars(plain_model()))
        self.factor = factor
        self.seen = []

    def train(self, mode):
        self.module.train(mode)

    def custom_step(self, batch):
        self.seen.append(self.optimizers[0].param_groups[0]["lr"])
        X, y = batch
        self.optimizers[0].zero_grad()
        loss = self.criterion(self.module(X), y) * self.factor
        loss.backward()
        self.optimizers[0].step()
        return {"loss": loss, "y_pred": None}


def test_a_users_step_gets_the_damped_rate():
    fit = plain_fit(WithStep(), custom_step=True)
    result = steps.update(fit, a_plan(lr_scale=0.5), a_batch(fit))
    assert fit.model.seen == [0.025]
    assert result.lr == pytest.approx(0.025)
    assert result.loss == result.outputs["loss"].item()
    assert result.grad_norm > 0
    assert fit.model.optimizers[0].param_groups[0]["lr"] == 0.05


def test_a_users_step_has_moved_the_parameters_already():
    fit = plain_fit(WithStep(float("nan")), custom_step=True)
    with pytest.raises(NotFiniteError, match="train_step has moved the parameters already"):
        steps.update(fit, a_plan(), a_batch(fit))
