"""DDP all-reduce: ranks yield what one process does."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from accelerando._engine.comm.ddp import Carrier, DDPAllReduce, TailLoss
from accelerando._engine.comm.process_group import LostContact
from accelerando._engine.data.feed import Batch
from accelerando._engine.step import grad_norm, update
from accelerando.exceptions import ClusterError
from accelerando.monitor import GradientNoiseScale
from tests._engine.comm.ranks import (
    MLP,
    column,
    data_of,
    fit_of,
    flat,
    model_of,
    on_ranks,
    plan_of,
    train,
)

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def ddp_fit(group, model=None, *, compressor=None, monitors=(), **settings):
    """Return a fit of one rank."""
    model = model or model_of(norm=True, momentum=0.9)

    def make(spec):
        return DDPAllReduce(
            model,
            group,
            control_active=spec.control.active,
            looks_at_parts=bool(spec.control.looks_at_parts),
            sums=spec.sums,
            compressor=compressor,
        )

    return fit_of(model, make, monitors=monitors, **settings)


def trained(size, make_model=None, **settings):
    """Return the fits of all ranks after two epochs."""

    def work(group):
        fit = train(ddp_fit(group, make_model and make_model(), **settings))
        fit.comm.close()
        return fit

    return on_ranks(size, work)


class Gated(nn.Module):
    """One branch is used for some rows only, another never."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 3)
        self.extra = nn.Linear(4, 3)
        self.never = nn.Linear(2, 2)

    def forward(self, x):
        high = x[:, 0] > 1.2
        out = self.base(x)
        if high.any():
            out = out + high[:, None] * self.extra(x)
        return out


class Scaled(nn.Module):
    """A criterion with a parameter."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, y_pred, y):
        return nn.functional.cross_entropy(y_pred * self.log_scale.exp(), y)


def scaled():
    model = model_of(criterion=Scaled())
    model.optimizers[0].add_param_group({"params": list(model.criterion.parameters())})
    model.refresh()
    return model


WEIGHTS = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
MODELS = {
    "BatchNorm": lambda: model_of(norm=True, momentum=0.9),
    "class weights": lambda: model_of(criterion=nn.CrossEntropyLoss(weight=WEIGHTS)),
    "ignored targets": lambda: model_of(criterion=nn.CrossEntropyLoss(ignore_index=1)),
    "sum": lambda: model_of(criterion=nn.CrossEntropyLoss(reduction="sum"), lr=0.01),
    "criterion with a parameter": scaled,
    "parameters without gradient": lambda: model_of(Gated, momentum=0.9),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_yield_what_one_process_does(name, size):
    one = train(fit_of(MODELS[name]()))
    expected = [*one.model.module.state_dict().values(), *one.model.parameters]
    found = trained(size, MODELS[name])
    for fit in found:
        tensors = [*fit.model.module.state_dict().values(), *fit.model.parameters]
        torch.testing.assert_close(tensors, expected, **EXACT)
        assert torch.equal(flat(fit.model.module), flat(found[0].model.module))
        assert column(fit, "loss") == pytest.approx(column(one, "loss"), rel=1e-6)
        assert column(fit, "grad_norm") == pytest.approx(column(one, "grad_norm"), rel=1e-6)


def test_a_parameter_that_nobody_used_has_no_gradient():
    """Momentum and weight decay treat zero and None differently."""
    for fit in trained(2, MODELS["parameters without gradient"]):
        assert fit.model.module.never.weight.grad is None
        assert fit.model.module.base.weight.grad is not None


@pytest.mark.parametrize("fixed", [1, 3])
def test_micro_batches_on_ranks(fixed):
    def work(group):
        fit = ddp_fit(group, model_of(momentum=0.9))
        fit.state.micro_batch.whole, fit.state.micro_batch.fixed = False, fixed
        train(fit)
        fit.comm.close()
        return flat(fit.model.module)

    expected = flat(train(fit_of(model_of(momentum=0.9))).model.module)
    for found in on_ranks(2, work):
        torch.testing.assert_close(found, expected, **EXACT)


def test_a_rank_without_rows_only_fills_in():
    """Two rows for three ranks; BatchNorm's statistics are those of the two."""
    model = model_of(norm=True)
    one = fit_of(model)
    X, y = data_of(2)
    update(one, plan_of(2), Batch((X, y), 2, None, 2))

    def work(group):
        rank = group.shard.rank
        fit = ddp_fit(group, model_of(norm=True))
        held = int(rank < 2)
        rows = slice(rank, rank + 1) if held else slice(0, 1)
        result = update(fit, plan_of(2), Batch((X[rows], y[rows]), 2, None, held))
        fit.comm.close()
        return result.loss, list(fit.model.module.state_dict().values())

    for loss, tensors in on_ranks(3, work):
        torch.testing.assert_close(tensors, list(model.module.state_dict().values()), **EXACT)
        assert math.isfinite(loss)


# -- numbers next to the gradient -----------------------------------------------------------------


def test_a_pause_of_one_rank_reaches_all_with_the_next_update():
    def work(group):
        fit = ddp_fit(group)
        batch = Batch(data_of(6), 12, None, 6)
        group.pause = group.shard.rank == 1
        update(fit, plan_of(12), batch)
        paused = group.paused
        fit.comm.close()
        return paused

    assert on_ranks(2, work) == [True, True]


@pytest.mark.parametrize("fixed", [None, 3], ids=["in one piece", "micro-batches"])
def test_a_rank_that_is_alone_pauses_when_it_wants_to(fixed):
    def work(group):
        fit = ddp_fit(group, model_of())
        fit.state.micro_batch.whole, fit.state.micro_batch.fixed = fixed is None, fixed
        batch = Batch(data_of(6), 6, None, 6)
        update(fit, plan_of(6), batch)
        before, group.pause = group.paused, True
        update(fit, plan_of(6), batch)
        fit.comm.close()
        return before, group.paused

    assert on_ranks(1, work) == [(False, True)]


def test_different_plans_are_an_error():
    def work(group):
        fit = ddp_fit(group, model_of(), monitors=[GradientNoiseScale()])
        batch = Batch(data_of(6), 12, None, 6)
        update(fit, plan_of(12), batch)
        with pytest.raises(ClusterError, match="decided differently"):
            update(fit, plan_of(12, lr_scale=1.0 + group.shard.rank), batch)
        fit.comm.close()

    on_ranks(2, work)


def test_bytes_are_those_of_a_ring_with_the_tail():
    for fit in trained(3, model_of):
        n_parameters = len(flat(fit.model.module))
        assert set(column(fit, "bytes")) == {2.0 * 2 * 8 * (n_parameters + 3)}
        assert min(column(fit, "wait_seconds")) >= 0


def test_bytes_contain_those_of_batch_norm():
    """Eight channels: what ranks are about to call, sums and a count, before and at the end."""
    for fit in trained(3, partial(model_of, norm=True)):
        n_parameters = len(flat(fit.model.module))
        sums = 2 * (3 + 8 + 1) + 2 * (8 + 8 + 1)
        assert set(column(fit, "bytes")) == {2.0 * 2 * 8 * (n_parameters + 3 + sums)}


def test_clocks_of_the_ranks_are_averaged():
    def work(group):
        rank = group.shard.rank
        fit = ddp_fit(group, model_of(), monitors=[GradientNoiseScale()])
        batch = Batch(data_of(6), 12, None, 6)
        update(fit, plan_of(12), batch)
        first = fit.comm.mean_seconds(1.0 + rank)
        update(fit, plan_of(12), batch)
        second = fit.comm.mean_seconds(9.0)
        fit.comm.close()
        return first[0], second[0]

    for first, second in on_ranks(2, work):
        assert math.isnan(first)
        assert second == pytest.approx(1.5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("hidden", [8, 80_000], ids=["one bucket", "several buckets"])
def test_norms_of_the_ranks_gradients(reduction, hidden):
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    X, y = data_of(9)
    shares = [(X[rank::2], y[rank::2]) for rank in range(2)]  # five rows and four

    def work(group):
        model = model_of(hidden=hidden, criterion=criterion, lr=1e-6)
        fit = ddp_fit(group, model, monitors=[GradientNoiseScale()])
        data = shares[group.shard.rank]
        result = update(fit, plan_of(9), Batch(data, 9, None, len(data[0])))
        fit.comm.close()
        return result.noise

    expected = 0.0
    for data in shares:
        model = model_of(hidden=hidden)
        model.loss(model.module(data[0]), data[1], None).backward()
        # The mean of the squared norms of the mean gradients, weighted by rows.
        expected += len(data[0]) * grad_norm(model.parameters) ** 2
    expected /= 1.0 if reduction == "sum" else 9.0
    for noise in on_ranks(2, work):
        assert noise.number == 2
        assert noise.square == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("hidden", "ranks"), [(8, 2), (8, 3), (80_000, 2)], ids=["2", "3", "2, several buckets"]
)
def test_norms_of_single_rows_do_not_depend_on_the_ranks(reduction, hidden, ranks):
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    X, y = data_of(9)

    def work(group):
        model = model_of(hidden=hidden, criterion=criterion, lr=1e-6)
        fit = ddp_fit(group, model, monitors=[GradientNoiseScale(every=2)], divisible=True)
        rank = group.shard.rank
        data = X[rank::ranks], y[rank::ranks]
        batch = Batch(data, 9, None, len(data[0]))
        found = []
        for _ in range(3):
            found.append(update(fit, plan_of(9), batch).noise)
            fit.state.position.update += 1
        fit.comm.close()
        return found

    expected = 0.0
    for row in range(9):
        model = model_of(hidden=hidden)
        model.loss(model.module(X[row : row + 1]), y[row : row + 1], None).backward()
        expected += grad_norm(model.parameters) ** 2
    expected /= 1.0 if reduction == "sum" else 9.0
    for first, second, third in on_ranks(ranks, work):
        assert (first.number, second.number, third.number) == (9, 0, 9), "every second update"
        assert first.square == pytest.approx(expected, rel=1e-4)


# -- numbers and losses of contact ---------------------------------------------------------------


def test_sums_for_measurements():
    def work(group):
        comm = ddp_fit(group, model_of()).comm
        parameter = torch.zeros(1)
        parameter.grad = torch.ones(1)
        comm.sum_gradients([parameter])
        sums = comm.sum(1.0, group.shard.rank)
        comm.close()
        return sums, parameter.grad.item()

    assert on_ranks(2, work) == [([2.0, 1.0], 2.0)] * 2


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "BatchNorm"])
def test_a_rank_that_leaves_is_noticed_during_an_update(norm):
    def work(group):
        fit = ddp_fit(group, model_of(norm=norm))
        batch = Batch(data_of(6), 12, None, 6)
        update(fit, plan_of(12), batch)
        if group.shard.rank == 1:
            fit.comm.close()
            return True
        before = flat(fit.model.module)
        with pytest.raises(LostContact):
            update(fit, plan_of(12), batch)
        assert torch.equal(flat(fit.model.module), before)
        fit.comm.close()
        return True

    assert on_ranks(2, work) == [True, True]


def test_a_closed_communicator_leaves_the_module_as_it_was():
    def work(group):
        model = model_of(norm=True)
        comm = ddp_fit(group, model).comm
        assert "forward" in vars(model.module.norm)
        comm.close()
        assert "forward" not in vars(model.module.norm)
        assert comm.wrapped is None
        model.module(data_of(4)[0]).sum().backward()

    on_ranks(1, work)


# -- the tail -------------------------------------------------------------------------------------


def test_the_tail_is_in_double_precision_only_if_all_parameters_are():
    assert Carrier(MLP(), None, 3).tail.dtype == torch.float32
    assert Carrier(MLP().double(), None, 3).tail.dtype == torch.float64
    mixed = nn.Sequential(MLP(), MLP().double())
    assert Carrier(mixed, None, 3).tail.dtype == torch.float32
    names = [name for name, _ in Carrier(MLP(), Scaled(), 3).named_parameters()]
    assert names[0] == "tail"
    assert "module.first.weight" in names
    assert "criterion.log_scale" in names


def test_the_tail_carries_numbers_and_gives_parameters_no_gradient():
    tail = nn.Parameter(torch.zeros(3))
    weight = nn.Parameter(torch.ones(2))
    calls = []
    numbers = torch.tensor([2.0, 3.0, 5.0])
    loss = TailLoss.apply(tail, numbers, lambda: calls.append(tail.grad is not None), weight)
    loss.backward()
    assert tail.grad.tolist() == [2.0, 3.0, 5.0]
    assert weight.grad is None
    assert calls == [True]  # after the backward pass
