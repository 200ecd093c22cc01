"""DDP all-reduce: layers that are skipped now and then."""

from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from distributed.utils import get_mp_context
from torch import nn

from accelerando._engine.comm.process_group import ProcessGroup, form
from accelerando._engine.loop import NoHooks
from accelerando._engine.micro_batch import MicroBatch
from accelerando.compress import QSGD, ErrorFeedback, PowerSGD, TopK
from tests._engine.comm.ranks import CPU, fit_of, flat, model_of, on_ranks, train
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


def with_compression(group, compressor):
    """Train while the layer is skipped now and then, and further while nobody uses it."""
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


@pytest.mark.parametrize("compressor", [QSGD(), ErrorFeedback(TopK(0.5))], ids=["codec", "memory"])
def test_layers_that_are_skipped_with_compression(compressor):
    """Nothing waits, and what error feedback holds back stays there while nobody uses it."""
    (first, *_), (second, same, gradient) = on_ranks(
        2, lambda group: with_compression(group, compressor)
    )
    assert torch.equal(first, second)
    assert same
    assert gradient is None


KEPT = []  # PowerSGD's threads may be the last to drop the group, which must not join itself


def with_power(path, rank):
    store = dist.FileStore(path, 2)
    formed = form(store, rank, 2, seconds=60.0, address="127.0.0.1", device=CPU)
    KEPT.append(formed)
    return with_compression(ProcessGroup(formed, CPU), PowerSGD())[0].tolist()


def test_layers_that_are_skipped_with_power_sgd(tmp_path):
    """In real processes: PyTorch's hook seeds the generator that ranks as threads would share."""
    path = str(tmp_path / "store")
    with ProcessPoolExecutor(2, mp_context=get_mp_context()) as pool:  # warm, see tests/warm.py
        waiting = [pool.submit(with_power, path, rank) for rank in range(2)]
        first, second = (one.result(timeout=100) for one in waiting)
    assert first == second


def test_a_rank_without_rows_has_used_nothing():
    """The row that it evaluates, so that collective operations meet, may be one of earlier ones."""

    def work(group):
        fit = train(ddp_fit(group, model_of(Routed, momentum=0.9), rows=4))
        comm, (first, *rest) = fit.comm, fit.model.parameters
        for parameter in (first, *rest):
            parameter.grad = torch.zeros_like(parameter)
        rest[0].grad = None
        found = []
        for held in (1, 0):
            comm._held = held
            comm._look_for_missing()
            found.append(len(comm._missing))
        comm.close()
        return found, len(rest)

    ((found, others),) = on_ranks(1, work)
    assert found == [1, others + 1]
