"""One update: the gradient is that of the whole batch, and a bad step is taken back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from accelerando._decisions import Plan, Settings
from accelerando._engine import step as steps
from accelerando._engine.comm.communicator import SingleProcess
from accelerando._engine.data.feed import Batch, Shard
from accelerando._engine.step import (
    damped,
    grad_norm,
    has_own_step,
    largest_number,
    needs_closure,
    offers_closure,
)
from accelerando.monitor import GradientNoiseScale
from tests._engine.fits import data, plain_fit, plain_model, weights_of


def a_plan(rows=24, lr_scale=1.0, **settings):
    return Plan(rows, rows, lr_scale, Settings(**settings), [{}])


def a_batch(fit, rows=None):
    """Return the first `rows` rows of the feed in their order, as one batch."""
    wanted = torch.arange(fit.feed.n_rows if rows is None else rows).numpy()
    return Batch(fit.feed.gather(wanted), len(wanted), wanted, len(wanted))


def gradient_of(model, loss):
    model.module.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.module.parameters()]


CRITERIA = {
    "mean": nn.CrossEntropyLoss,
    "sum": lambda: nn.CrossEntropyLoss(reduction="sum"),
    "weights": lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0, 0.5])),
    "ignored": lambda: nn.CrossEntropyLoss(ignore_index=3),
}


def classification(criterion, *, micro=None, **spec):
    torch.manual_seed(1)
    X, y = torch.randn(25, 3), torch.randint(0, 4, (25,))
    y[:6] = 3  # some micro-batches hold ignored targets only
    model = plain_model(nn.Linear(3, 4), CRITERIA[criterion]())
    fit = plain_fit(model, (X, y), sums=criterion == "sum", **spec)
    fit.state.micro_batch.whole, fit.state.micro_batch.fixed = micro is None, micro
    return fit, X, y


# -- the gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("micro", [None, 1, 4, 100])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_micro_batches_add_up_to_the_gradient_of_the_batch(criterion, micro, weighted):
    weights = torch.linspace(0.0, 2.0, 25) if weighted else None
    fit, X, y = classification(criterion, micro=micro, weights=weights)
    model = fit.model
    if weighted:
        each = CRITERIA[criterion]()
        each.reduction = "none"
        mean = {"mean": 25.0, "sum": 1.0, "ignored": float((y != 3).sum())}
        mean["weights"] = float(torch.tensor([1.0, 2.0, 5.0, 0.5])[y].sum())
        loss = (weights * each(model.module(X), y)).sum() / mean[criterion]
    else:
        loss = model.criterion(model.module(X), y)
    expected = gradient_of(model, loss)
    model.module.zero_grad()
    found = steps.accumulate(fit, a_batch(fit), weights)
    for gradient, parameter in zip(expected, model.module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
    assert sum(one.item() for one in found.losses) == pytest.approx(loss.item(), rel=1e-5)
    assert found.y_pred.shape == (25, 4)


@pytest.mark.parametrize("criterion", ["mean", "weights", "ignored"])
def test_the_rows_of_ranks_add_up_by_rows_until_they_are_reduced(criterion):
    """The loss of each rank is multiplied by mass / rows of the batch; the reduction divides."""

    class Rank(SingleProcess):
        alone = False

        def __init__(self, number):
            super().__init__()
            self.shard, self.mass = Shard(number, 3), 0.0

        def backward(self, loss, mass, *, last):
            self.mass += mass
            super().backward(loss, mass, last=last)

    fit, X, y = classification(criterion, micro=4)
    model = fit.model
    expected = gradient_of(model, model.criterion(model.module(X), y))
    model.module.zero_grad()
    mass = 0.0
    for number in range(3):
        fit.comm = Rank(number)
        batch = fit.feed.epoch(0, 0, 0, fit.comm.shard).take(25)
        steps.accumulate(fit, batch, None)
        mass += fit.comm.mass
    for gradient, parameter in zip(expected, model.module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad / mass, gradient, rtol=1e-5, atol=1e-6)


def test_a_rank_without_rows_adds_nothing_but_takes_part():
    fit, _, _ = classification("mean")
    fit.comm.alone = False
    data_of_one = fit.feed.gather(torch.arange(1).numpy())
    passed = []
    fit.comm.backward = lambda loss, mass, *, last: passed.append((loss, mass))
    found = steps.accumulate(fit, Batch(data_of_one, 2, None, held=0), None)
    ((loss, mass),) = passed
    assert (loss.item(), mass) == (0.0, 0.0)
    loss.backward()
    assert all(bool((p.grad == 0).all()) for p in fit.model.parameters), "every hook fires"
    assert sum(found.losses).item() == 0.0


def test_a_part_of_ignored_targets_has_no_nan():
    fit, _, _ = classification("ignored", micro=5)  # the first five rows are ignored
    found = steps.accumulate(fit, a_batch(fit), None)
    assert float(found.losses[0]) == 0.0
    assert all(bool(p.grad.isfinite().all()) for p in fit.model.parameters)


class Rows:
    """Rows of which nothing is known but their number."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)


def test_rows_that_are_no_tensors_stay_in_one_piece():
    sizes = []

    class Look(nn.Linear):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x.rows)

    fit = plain_fit(plain_model(Look(3, 1)))
    fit.state.micro_batch.whole, fit.state.micro_batch.fixed = False, 5
    X, y = data()
    steps.accumulate(fit, Batch((Rows(X), y), 24, None, 24), None)
    assert sizes == [24]


def test_parts_are_compared_only_where_a_monitor_asks_for_it():
    fit = plain_fit(monitors=[GradientNoiseScale(every=3)], divisible=True)
    looked = []
    for update in range(6):
        fit.state.position.update = update
        fit.model.module.zero_grad()
        looked.append(steps.accumulate(fit, a_batch(fit), None).noise is not None)
    assert looked == [True, False, False] * 2
    fit = plain_fit(monitors=[GradientNoiseScale(every=3)], divisible=False)
    assert steps.accumulate(fit, a_batch(fit), None).noise is None
    fit = plain_fit(divisible=True)
    assert steps.accumulate(fit, a_batch(fit), None).noise is None


def test_the_norms_of_halves_are_those_of_their_mean_gradients():
    X, y = data()
    fit = plain_fit(arrays=(X, y), monitors=[GradientNoiseScale(every=1)], divisible=True)
    model = fit.model
    squares = []
    for half in (slice(0, 12), slice(12, 24)):
        loss = model.criterion(model.module(X[half]), y[half])
        squares.append(sum(g.square().sum().item() for g in gradient_of(model, loss)))
    whole = gradient_of(model, model.criterion(model.module(X), y))
    model.module.zero_grad()
    fit.row_norms = ([id(p) for p in model.parameters], None)  # as if a layer had no formula
    noise = steps.accumulate(fit, a_batch(fit), None).noise
    assert noise.number == 2
    assert noise.square == pytest.approx(sum(squares) / 2, rel=1e-5)
    for gradient, parameter in zip(whole, model.module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


# -- norms ----------------------------------------------------------------------------------------


def with_gradient(gradient, dtype=torch.float32):
    gradient = torch.as_tensor(gradient, dtype=dtype)
    parameter = nn.Parameter(torch.zeros(gradient.shape, dtype=dtype))
    parameter.grad = gradient
    return parameter


def test_the_norm_is_that_of_all_gradients():
    without = nn.Parameter(torch.ones(3))
    assert grad_norm([with_gradient([3.0]), without, with_gradient([[0.0, 4.0]])]) == 5.0
    assert grad_norm([without]) == 0.0


def test_the_norm_of_gradients_of_every_layout():
    strided = with_gradient(torch.arange(6.0).reshape(2, 3))
    strided.grad = torch.arange(6.0).reshape(3, 2).T
    assert grad_norm([strided]) == pytest.approx(math.sqrt(55))
    rows = nn.Embedding(5, 2, sparse=True)
    rows(torch.tensor([1, 1, 4])).sum().backward()  # row 1 twice: 2² + 2² + 1² + 1²
    assert grad_norm([rows.weight]) == pytest.approx(math.sqrt(10))


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e25, torch.float32), (1e4, torch.float16), (1e-25, torch.float32)]
)
def test_squares_that_overflow_are_no_infinite_norm(value, dtype):
    norm = grad_norm([with_gradient([value, value], dtype)])
    if value > 1:
        assert norm == pytest.approx(value * math.sqrt(2), rel=1e-3)
    else:
        assert norm >= 0.0


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_the_norm_of_bad_gradients_is_not_finite(bad):
    assert not math.isfinite(grad_norm([with_gradient([1.0]), with_gradient([bad])]))


def test_the_largest_number_is_that_of_the_narrowest_dtype():
    single, half = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, dtype=torch.float16))
    assert largest_number([single]) == torch.finfo(torch.float32).max
    assert largest_number([single, half]) == 65504
    assert largest_number([]) == 1.0


def test_closures_that_need_not_be_given_are_not_needed():
    parameters = [nn.Parameter(torch.ones(1))]
    assert needs_closure(torch.optim.LBFGS(parameters))
    assert not needs_closure(torch.optim.Adam(parameters))


def test_a_step_of_another_library_may_draw_random_numbers():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            pass

    class Inherits(torch.optim.Adam):
        pass

    parameters = [nn.Parameter(torch.ones(1))]
    assert has_own_step(Own(parameters))
    assert offers_closure(Own(parameters))
    for kind in (torch.optim.SGD, torch.optim.LBFGS, Inherits):
        assert not has_own_step(kind(parameters))
        assert not offers_closure(kind(parameters))


# -- the step -------------------------------------------------------------------------------------


def groups_of(optimizer):
    return [
        {k: g[k] for k in ("lr", "momentum", "betas") if k in g} for g in optimizer.param_groups
    ]


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (torch.optim.SGD, {}, {"lr": 0.05, "momentum": 0}),
        (torch.optim.SGD, {"momentum": 0.5}, {"lr": 0.05, "momentum": 0.5}),
        (torch.optim.Adam, {"momentum": 0.5}, {"lr": 0.05, "betas": (0.5, 0.999)}),
        (
            torch.optim.Adam,
            {"momentum": 0.5, "betas": (0.1, 0.2)},
            {"lr": 0.05, "betas": (0.1, 0.2)},
        ),
        (torch.optim.Adagrad, {"momentum": 0.5}, {"lr": 0.05}),
    ],
)
def test_a_step_is_damped_and_schedulers_never_see_it(kind, settings, expected):
    optimizer = kind([nn.Parameter(torch.ones(1))], lr=0.1)
    before = groups_of(optimizer)
    with damped([optimizer], 0.5, Settings(**settings)):
        assert groups_of(optimizer) == [expected]
    assert groups_of(optimizer) == before
    with pytest.raises(ZeroDivisionError), damped([optimizer], 0.5, Settings(**settings)):
        1 / 0  # noqa: B018
    assert groups_of(optimizer) == before


def test_every_group_of_every_optimizer_is_damped():
    one, two = (nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [one], "lr": 0.2}, {"params": [two]}], lr=0.4)
    other = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=0.8)
    with damped([optimizer, other], 0.5, Settings()):
        assert [g["lr"] for o in (optimizer, other) for g in o.param_groups] == [0.1, 0.2, 0.4]


def test_an_update_steps_by_the_damped_rate_and_reports_it():
    X, y = data()
    fit = plain_fit(arrays=(X, y))
    expected = plain_model(lr=0.05 * 0.5)
    loss = expected.criterion(expected.module(X), y)
    gradients = gradient_of(expected, loss)
    expected.optimizers[0].step()
    result = steps.update(fit, a_plan(lr_scale=0.5), a_batch(fit))
    wanted = torch.cat([p.detach().flatten() for p in expected.module.parameters()])
    assert torch.allclose(weights_of(fit), wanted, atol=1e-7)
    assert result.lr == pytest.approx(0.025)
    assert result.loss == pytest.approx(loss.item())
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
    assert result.grad_norm == pytest.approx(norm)
    assert torch.equal(result.outputs["loss"], loss.detach())
    assert result.outputs["y_pred"].shape == (24, 1)


def test_hooks_may_change_the_gradient_after_it_was_measured():
    class Zero:
        def gradients_ready(self, batch):
            for parameter in fit.model.parameters:
                parameter.grad.zero_()

    fit = plain_fit(hooks=Zero())
    before = weights_of(fit)
    result = steps.update(fit, a_plan(), a_batch(fit))
    assert torch.equal(weights_of(fit), before)
    assert result.grad_norm > 0


def test_the_gradient_of_the_update_before_is_forgotten():
    clean, fit = plain_fit(), plain_fit()
    for parameter in fit.model.parameters:
        parameter.grad = torch.full_like(parameter, 100.0)
    results = [steps.update(one, a_plan(), a_batch(one)) for one in (clean, fit)]
    assert results[0].grad_norm == results[1].grad_norm
    assert torch.equal(weights_of(fit), weights_of(clean))


def test_a_module_in_evaluation_mode_trains():
    fit = plain_fit()
    fit.model.train(False)
    steps.update(fit, a_plan(), a_batch(fit))
    assert fit.model.module.training
