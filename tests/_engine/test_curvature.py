"""The Hessian of a batch's loss against the whole matrix."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian

from accelerando._engine.curvature import look_at_curvature
from accelerando._engine.data.feed import Batch
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import Curvature
from tests._engine.comm.ranks import data_of, model_of, on_ranks
from tests._engine.comm.test_ddp import ddp_fit
from tests._engine.fits import data, plain_fit, plain_model
from tests.nets import classifier


def exact(model, X, y):
    """Return the eigenvalues of the Hessian, for a module without structure."""
    parameters = [p.detach() for p in model.parameters]
    shapes = [p.shape for p in parameters]

    def loss(flat):
        parts, start = [], 0
        for shape in shapes:
            parts.append(flat[start : start + shape.numel()].reshape(shape))
            start += shape.numel()
        named = dict(zip(dict(model.module.named_parameters()), parts, strict=True))
        return nn.functional.mse_loss(torch.func.functional_call(model.module, named, (X,)), y)

    flat = torch.cat([p.flatten() for p in parameters])
    return torch.linalg.eigvalsh(hessian(loss, flat))


def looked(monitor, module=None):
    X, y = data()
    model = plain_model(module or nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)))
    fit = plain_fit(model, monitors=[monitor])
    before = [p.detach().clone() for p in model.parameters]
    seen = look_at_curvature(fit, Batch([X, y], 24, None, 24))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters, before, strict=True))
    assert all(p.grad is None for p in model.parameters)
    assert model.module.training
    return seen, exact(model, X, y)


def test_the_trace_is_that_of_the_matrix():
    seen, values = looked(Curvature(every=1, samples=400))
    assert seen.trace == pytest.approx(float(values.sum()), rel=0.1)
    assert seen.top != seen.top, "nobody asked for it"
    assert seen.seconds > 0.0


def test_the_power_method_finds_the_eigenvalue_of_largest_size():
    seen, values = looked(Curvature(every=1, iterations=60))
    assert seen.top == pytest.approx(float(values[values.abs().argmax()]), rel=1e-2)


def test_a_loss_that_is_linear_in_a_parameter_has_no_curvature_there():
    seen, values = looked(Curvature(every=1, samples=3, iterations=30), nn.Linear(3, 1))
    assert seen.top == pytest.approx(float(values.abs().max()), rel=1e-2)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("the derivative is not implemented.")


class NoSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2.0 * x

    @staticmethod
    def backward(ctx, gradient):
        return Fails.apply(2.0 * gradient)


class Once(nn.Linear):
    def forward(self, x):
        return NoSecond.apply(super().forward(x)).tanh()


def test_an_operation_without_a_second_derivative_is_named():
    with pytest.raises(UnsupportedError, match="Curvature needs second derivatives"):
        looked(Curvature(every=1), Once(3, 1))


def test_in_training_it_is_looked_at_now_and_then_and_changes_nothing(digits):
    settings = {"max_epochs": 1, "batch_size": 40, "module__dropout": 0.2}
    watched = classifier(monitors=[Curvature(every=4, iterations=3)], **settings).fit(*digits)
    plain = classifier(**settings).fit(*digits)
    frame = watched.updates_frame()
    assert frame["hessian_trace"].notna().tolist() == [False] * 3 + [True] * 9
    assert frame["hessian_trace"].nunique() == 3
    assert frame["loss"].equals(plain.updates_frame()["loss"])


def test_virtual_ranks_see_the_whole_batch(digits):
    one = classifier(monitors=[Curvature(every=2)], max_epochs=1, batch_size=40).fit(*digits)
    two = classifier(
        monitors=[Curvature(every=2)], max_epochs=1, batch_size=20, virtual_ranks=2
    ).fit(*digits)
    first, second = (net.updates_frame()["hessian_trace"].iloc[1] for net in (one, two))
    assert first == pytest.approx(second, rel=1e-4)


def test_ranks_agree_on_the_curvature_of_the_whole_batch():
    X, y = data_of(9)

    def work(group):
        fit = ddp_fit(group, model_of(), monitors=[Curvature(every=1, iterations=5)])
        share = slice(group.shard.rank, None, group.shard.size)
        mine = X[share], y[share]
        seen = look_at_curvature(fit, Batch(mine, 9, None, len(mine[0])))
        fit.comm.close()
        return seen.trace, seen.top

    (alone,) = on_ranks(1, work)
    for found in on_ranks(2, work):
        assert found == pytest.approx(alone, rel=1e-4)
