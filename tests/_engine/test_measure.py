"""What policies measure on the training set is the loss, or the gradient norm, of all its rows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from accelerando._decisions import Measure
from accelerando._engine import measure as measure_module
from accelerando._engine.comm.communicator import SingleProcess
from accelerando._engine.data.feed import Shard
from accelerando._engine.measure import measure_on_training_set, sample_rows
from accelerando.exceptions import UnsupportedError
from accelerando.policies import Decision, Policy
from tests._engine.fits import data, plain_fit, plain_model

LOSS, NORM = Measure("loss"), Measure("grad_norm")


class Dropping(nn.Module):
    """Dropout and BatchNorm: nothing of them may be seen in a measurement."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.drop(self.norm(x)))


def by_hand(model, X, y, criterion=None):
    model.module.eval()
    model.module.zero_grad()
    loss = (criterion or model.criterion)(model.module(X), y)
    loss.backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.module.parameters()))
    model.module.zero_grad()
    return loss.item(), norm


@pytest.fixture
def small(monkeypatch):
    """Let the rows come in several pieces, the last of them short."""
    monkeypatch.setattr(measure_module, "ROWS_AT_ONCE", 10)


@pytest.mark.parametrize("module", [None, Dropping])
def test_loss_and_gradient_norm_are_those_of_all_rows(small, module):
    X, y = data(24)
    model = plain_model(module and module())
    fit = plain_fit(model, (X, y))
    loss, norm = by_hand(model, X, y)
    assert measure_on_training_set(fit, LOSS) == pytest.approx(loss, rel=1e-6)
    assert measure_on_training_set(fit, NORM) == pytest.approx(norm, rel=1e-6)
    assert all(p.grad is None for p in model.parameters), "no gradient stays for the next update"


def test_statistics_of_batchnorm_do_not_move(small):
    model = plain_model(Dropping())
    measure_on_training_set(plain_fit(model), NORM)
    assert model.module.norm.num_batches_tracked == 0


def test_class_weights_and_ignored_targets_decide_the_mean(small):
    torch.manual_seed(0)
    X, y = torch.randn(24, 3), torch.randint(0, 4, (24,))
    y[:7] = 3
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0, 1.0]), ignore_index=3)
    model = plain_model(nn.Linear(3, 4), criterion)
    fit = plain_fit(model, (X, y))
    loss, norm = by_hand(model, X, y)
    assert measure_on_training_set(fit, LOSS) == pytest.approx(loss, rel=1e-6)
    assert measure_on_training_set(fit, NORM) == pytest.approx(norm, rel=1e-6)


def test_the_mean_of_a_loss_that_is_a_sum(small):
    X, y = data(24)
    model = plain_model(criterion=nn.MSELoss(reduction="sum"))
    fit = plain_fit(model, (X, y), sums=True)
    loss, norm = by_hand(model, X, y, nn.MSELoss())
    assert measure_on_training_set(fit, LOSS) == pytest.approx(loss, rel=1e-6)
    assert measure_on_training_set(fit, NORM) == pytest.approx(norm, rel=1e-6)


def test_a_fraction_is_drawn_anew_for_every_update(small):
    X, y = data(24)
    fit = plain_fit(arrays=(X, y))
    half = Measure("loss", 0.5)
    found = []
    for update in (0, 1):
        fit.state.position.update = update
        rows = torch.from_numpy(sample_rows(0, update, 24, 0.5))
        found.append(measure_on_training_set(fit, half))
        assert found[-1] == pytest.approx(by_hand(fit.model, X[rows], y[rows])[0], rel=1e-6)
    assert found[0] != found[1]


def test_rows_go_through_the_model_in_micro_batches():
    sizes = []

    class Look(nn.Linear):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    fit = plain_fit(plain_model(Look(3, 1)))
    fit.state.micro_batch.fixed = 7
    measure_on_training_set(fit, LOSS)
    assert sizes == [7, 7, 7, 3]


def test_ranks_add_up_what_each_has_measured(small):
    """Two ranks, one after the other; the second one adds what the first one found."""
    X, y = data(25)
    model = plain_model()
    loss, norm = by_hand(model, X, y)

    class Rank(SingleProcess):
        def __init__(self, number, others=None):
            super().__init__()
            self.shard, self.others, self.numbers, self.gradients = Shard(number, 2), others, [], []

        def sum(self, *numbers):
            self.numbers = list(numbers)
            if self.others is None:
                return list(numbers)
            return [a + b for a, b in zip(numbers, self.others.numbers, strict=True)]

        def sum_gradients(self, parameters):
            self.gradients = [p.grad.clone() for p in parameters]
            for parameter, other in zip(
                parameters, getattr(self.others, "gradients", ()), strict=False
            ):
                parameter.grad += other

    for measure, expected in ((LOSS, loss), (NORM, norm)):
        first = Rank(0)
        second = Rank(1, first)
        measure_on_training_set(plain_fit(model, (X, y), comm=first), measure)
        found = measure_on_training_set(plain_fit(model, (X, y), comm=second), measure)
        assert found == pytest.approx(expected, rel=1e-6)
        assert [first.numbers[1], second.numbers[1]] == [13, 12], "each has seen its own rows"


def test_a_stream_cannot_be_measured():
    class Late(Policy):
        def measures(self, update):
            return LOSS

        def decide(self, signals, state):
            return Decision(batch_size=5), state

    fit = plain_fit(batch_size=Late())
    fit.feed.n_examples = None
    with pytest.raises(UnsupportedError, match=r"Late measures on the training set .* RadaDamp"):
        measure_on_training_set(fit, LOSS)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_measured_loss_is_the_weighted_one(small, reduction):
    X, y = data(24)
    model = plain_model()
    model.criterion.reduction = reduction
    fit = plain_fit(model, (X, y))
    weights = torch.linspace(0.0, 2.0, 24)
    fit.spec = dataclasses.replace(fit.spec, weights=weights, sums=reduction == "sum")

    def weighted(y_pred, y):
        losses = nn.functional.mse_loss(y_pred, y, reduction="none").flatten(1)
        return (losses.mean(1) * weights).mean()

    loss, norm = by_hand(model, X, y, weighted)
    assert measure_on_training_set(fit, LOSS) == pytest.approx(loss, rel=1e-6)
    assert measure_on_training_set(fit, NORM) == pytest.approx(norm, rel=1e-6)


def test_sampled_rows_are_distinct_and_change_with_the_update():
    rows = sample_rows(0, 5, 100, 0.2)
    assert len(set(rows.tolist())) == 20
    assert rows.tolist() == sorted(rows.tolist())
    assert rows.tolist() != sample_rows(0, 6, 100, 0.2).tolist()
    assert sample_rows(0, 5, 10, 1.0).tolist() == list(range(10))
    assert len(sample_rows(0, 5, 10, 0.01)) == 1
    assert sample_rows(3, 2, 20, 0.2).tolist() == [6, 10, 12, 14], "as in earlier versions"
