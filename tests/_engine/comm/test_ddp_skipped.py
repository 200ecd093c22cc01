"""DDP all-reduce: layers that are skipped now and then."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from accelerando._engine.loop import NoHooks
from accelerando._engine.micro_batch import MicroBatch
from accelerando.compress import QSGD, ErrorFeedback, PowerSGD, TopK
from tests._engine.comm.ranks import fit_of, flat, model_of, on_ranks, train
from tests._engine.comm.test_ddp import EXACT, ddp_fit


class Routed(nn.Module):
    """A mixture of experts: one of them sees few rows, in many updates none at all."""

    def __init__(self, limit=1.5):
        super().__init__()
        self.base, self.rare, self.never = (nn.Linear(4, 3) for _ in range(3))
        self.limit = limit

    def forward(self, x):
        found = self.base(x)
        rows = x[:, 0] > self.limit
        if rows.any():
            found = found.clone()
            found[rows] = found[rows] + self.rare(x[rows])
        return found


@pytest.mark.parametrize("fixed", [None, 1, 5], ids=["whole", "rows", "micro-batches"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_layers_that_some_updates_skip(size, fixed):
    """Momentum treats zero and None differently, so both must be as in one process."""

    def model():
        return model_of(Routed, momentum=0.9)

    alone = train(fit_of(model(), rows=4))
    rare = alone.model.module.rare.weight
    skipped = sum(torch.equal(*pair) for pair in pairwise(steps_of(model(), rare.shape)))
    assert 0 < skipped < 24, "the layer is to be skipped now and then"

    def work(group):
        fit = ddp_fit(group, model(), rows=4)
        if fixed is not None:
            fit.state.micro_batch = MicroBatch(fixed=fixed)
        train(fit)
        fit.comm.close()
        return fit

    for fit in on_ranks(size, work):
        torch.testing.assert_close(flat(fit.model.module), flat(alone.model.module), **EXACT)
        for mine, other in zip(fit.model.parameters, alone.model.parameters, strict=True):
            assert (mine.grad is None) == (other.grad is None)


def steps_of(model, shape):
    """Return the momentum of the layer that is sometimes skipped, after every update."""
    found = [torch.zeros(shape, dtype=torch.float64)]

    class Look(NoHooks):
        def after_update(self, batch, result):
            memory = model.optimizers[0].state.get(model.module.rare.weight, {})
            found.append(memory.get("momentum_buffer", found[-1]).clone())

    fit = fit_of(model, rows=4)
    fit.hooks = Look()
    train(fit)
    return found


@pytest.mark.parametrize(
    "compressor", [QSGD(), ErrorFeedback(TopK(0.5)), PowerSGD()], ids=["codec", "memory", "power"]
)
def test_layers_that_are_skipped_with_compression(compressor):
    """Nothing waits, and what error feedback holds back stays there while nobody uses it."""

    def work(group):
        fit = ddp_fit(group, model_of(Routed, momentum=0.9), rows=4, compressor=compressor)
        train(fit, epochs=1)
        before = fit.model.module.rare.weight.detach().clone()
        fit.model.module.limit = 1e9
        optimizer = torch.optim.SGD(fit.model.module.parameters(), lr=0.1)  # no memory of its own
        fit.model.optimizers[0] = optimizer
        train(fit, epochs=1)
        fit.comm.close()
        same = torch.equal(before, fit.model.module.rare.weight)
        return flat(fit.model.module), same, fit.model.module.rare.weight.grad

    (first, *_), (second, same, gradient) = on_ranks(2, work)
    assert torch.equal(first, second)
    if not isinstance(compressor, PowerSGD):
        assert same
        assert gradient is None
