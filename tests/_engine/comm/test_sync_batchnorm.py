"""BatchNorm over all ranks equals BatchNorm over the global batch."""

import copy

import pytest
import torch
from torch import nn

from accelerando._engine.comm.sync_batchnorm import BatchStatistics, synchronize
from accelerando.exceptions import UnsupportedError
from tests._engine.comm.ranks import on_ranks

LAYERS = {
    "rows": (nn.BatchNorm1d(3), (7, 3)),
    "images": (nn.BatchNorm2d(3), (7, 3, 4, 2)),
    "sequences": (nn.BatchNorm1d(3), (7, 3, 5)),
    "no affine": (nn.BatchNorm1d(3, affine=False), (7, 3)),
    "no statistics": (nn.BatchNorm1d(3, track_running_stats=False), (7, 3)),
    "cumulative": (nn.BatchNorm1d(3, momentum=None), (7, 3)),
}


def batch(shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 100


def passes(layer, x, times=2):
    """Return the output, the gradients and the statistics after some forward passes."""
    for _ in range(times):
        x = x.detach().requires_grad_()
        out = layer(x)
    weights = torch.linspace(-1, 2, out[0].numel(), dtype=torch.float64).view(out.shape[1:])
    (out * weights * (x + 1)).sum().backward()
    return out.detach(), x.grad, [p.grad for p in layer.parameters()], list(layer.buffers())


@pytest.mark.parametrize("name", LAYERS)
def test_ranks_compute_what_one_process_does(name):
    layer, shape = LAYERS[name]
    layer = layer.double()
    expected = passes(copy.deepcopy(layer), batch(shape))
    modules = [copy.deepcopy(layer) for _ in range(2)]

    def work(group):
        rank = group.shard.rank
        module = modules[rank]
        synchronize(module, BatchStatistics(group))
        return passes(module, batch(shape)[rank::2])

    found = on_ranks(2, work)
    for rank, (out, x_grad, _, buffers) in enumerate(found):
        torch.testing.assert_close(out, expected[0][rank::2], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(x_grad, expected[1][rank::2], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(buffers, expected[3], rtol=1e-12, atol=1e-12)
        assert all(map(torch.equal, buffers, found[0][3]))
    for number, gradient in enumerate(expected[2]):
        total = found[0][2][number] + found[1][2][number]
        torch.testing.assert_close(total, gradient, rtol=1e-12, atol=1e-12)


def test_the_running_variance_is_unbiased_over_all_ranks():
    """A rank with a single row contributes to the variance of the batch."""
    rows = torch.tensor([[0.0], [1.0], [5.0]])

    def work(group):
        layer = nn.BatchNorm1d(1, momentum=1.0)
        synchronize(layer, BatchStatistics(group))
        layer(rows[group.shard.rank :: 2])
        return layer.running_mean.item(), layer.running_var.item()

    for mean, variance in on_ranks(2, work):
        assert mean == pytest.approx(2.0)
        assert variance == pytest.approx(rows.var(unbiased=True).item())


def test_a_rank_that_only_fills_in_does_not_count():
    def work(group):
        layer = nn.BatchNorm1d(1, momentum=1.0)
        statistics = BatchStatistics(group)
        synchronize(layer, statistics)
        statistics.begin(counts=group.shard.rank == 0)
        x = torch.tensor([[1.0], [3.0]]) if group.shard.rank == 0 else torch.tensor([[77.0]])
        return layer(x).flatten().tolist(), layer.running_mean.item(), layer.running_var.item()

    (first, *statistics), (_, *others) = on_ranks(2, work)
    assert first == pytest.approx([-1.0, 1.0], abs=1e-4)
    assert statistics == others == pytest.approx([2.0, 2.0])


def test_statistics_far_from_zero_keep_their_digits():
    def work(group):
        layer = nn.BatchNorm1d(1, momentum=1.0)
        layer.running_mean.fill_(10_000.0)
        synchronize(layer, BatchStatistics(group))
        layer(torch.tensor([[10_000.0 + group.shard.rank]]))
        return layer.running_var.item()

    assert on_ranks(2, work) == [0.5, 0.5]


YEARS = [[2001.0], [2003.0], [1999.0], [2022.0]]


@pytest.mark.parametrize(
    ("rows", "dtype", "tolerance"),
    [
        (YEARS, torch.float32, 1e-4),
        (YEARS, torch.float64, 1e-12),
        ([[1.0], [1.0 + 1e-4]], torch.float64, 1e-11),
        ([[0.3], [-2.7]], torch.bfloat16, 4e-2),
    ],
    ids=["raw features", "raw features in double precision", "two rows", "half precision"],
)
def test_no_digits_are_lost_to_a_mean_that_is_not_known_yet(rows, dtype, tolerance):
    """The running mean is zero: relative to it, squares are a million times the variance."""
    x = torch.tensor(rows, dtype=dtype)
    kept = dtype if dtype == torch.float64 else torch.float32
    expected = nn.BatchNorm1d(1, dtype=kept, momentum=1.0)
    wanted = expected(x)

    def work(group):
        layer = nn.BatchNorm1d(1, dtype=kept, momentum=1.0)
        synchronize(layer, BatchStatistics(group))
        return layer(x[group.shard.rank :: 2]), list(layer.buffers())

    for rank, (out, buffers) in enumerate(on_ranks(2, work)):
        assert out.dtype == wanted.dtype
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(out, wanted[rank::2], **close)
        torch.testing.assert_close(buffers, list(expected.buffers()), **close)


def test_a_single_rank_computes_with_the_layer_itself():
    x = torch.randn(5, 3)

    def work(group):
        layer = nn.BatchNorm1d(3)
        synchronize(layer, BatchStatistics(group))
        return layer(x)

    assert torch.equal(on_ranks(1, work)[0], nn.BatchNorm1d(3)(x))


def test_skipped_layers_may_be_of_different_widths():
    """The message before a layer has the width of the widest one."""
    x = torch.linspace(-1.0, 2.0, 12, dtype=torch.float64).view(4, 3) ** 2
    narrow, wide = nn.BatchNorm1d(1, dtype=torch.float64), nn.BatchNorm1d(3, dtype=torch.float64)
    expected = narrow(x[:2, :1]), wide(x)

    def work(group):
        module = nn.ModuleList(copy.deepcopy(one) for one in (narrow, wide))
        for one in module:
            one.reset_running_stats()
        statistics = BatchStatistics(group)
        synchronize(module, statistics)
        statistics.begin(counts=True)
        mine = x[2 * group.shard.rank :][:2].clone().requires_grad_()
        out = [module[0](mine[:, :1])] if group.shard.rank == 0 else []
        out.append(module[1](mine))
        statistics.end(sum((one**2).sum() for one in out)).backward()
        return [one.detach() for one in out], list(module.buffers())

    (first, buffers), (second, others) = on_ranks(2, work)
    torch.testing.assert_close([first[0], torch.cat([first[1], second[0]])], list(expected))
    torch.testing.assert_close(buffers, [*narrow.buffers(), *wide.buffers()])
    assert all(map(torch.equal, buffers, others))


def test_evaluation_and_undoing_use_the_layer_itself():
    def work(group):
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        undo = synchronize(module, BatchStatistics(group))
        module.eval()
        alone = module(torch.ones(1, 2))  # no rank waits for another
        module.train()
        undo()
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            module(torch.ones(1, 2))
        return alone.shape

    assert on_ranks(1, work) == [(1, 2)]


def test_input_of_the_wrong_shape_is_refused_before_anything_is_sent():
    def work(group):
        layer = nn.BatchNorm1d(2)
        synchronize(layer, BatchStatistics(group))
        with pytest.raises(ValueError, match="expected 2D or 3D"):
            layer(torch.ones(1, 2, 3, 4))

    on_ranks(1, work)


class Branches(nn.Module):
    """Two layers, of which a rank calls those that its list names, in this order."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(1, momentum=1.0) for _ in range(3))
        self.double()

    def forward(self, x, names):
        for name in names:
            x = x + self.norms[name](x * (name + 1.0)) ** 2
        return x.sum()


def branches(calls, rows):
    """Return what ranks find that call these layers on their rows."""

    def work(group):
        module, statistics = Branches(), BatchStatistics(group)
        synchronize(module, statistics)
        statistics.begin(counts=True)
        x = rows[group.shard.rank].clone().requires_grad_()
        loss = module(x, calls[group.shard.rank])
        statistics.end(loss).backward()
        return x.grad, [p.grad for p in module.parameters()], list(module.buffers())

    return on_ranks(len(calls), work)


SKIPS = [([0, 1, 2], [1]), ([0], [2]), ([], [0, 2]), ([0, 2], [0, 1, 2]), ([1], [1], [0, 1])]


@pytest.mark.parametrize("calls", SKIPS, ids=str)
def test_ranks_may_skip_different_layers(calls):
    """Each layer has the statistics of the rows of those ranks that call it."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(3, 1, generator=generator, dtype=torch.float64) for _ in calls]
    module, parts = Branches(), [part.clone().requires_grad_() for part in rows]
    xs = list(parts)
    for name, layer in enumerate(module.norms):
        users = [rank for rank, names in enumerate(calls) if name in names]
        if not users:
            continue
        joined = layer(torch.cat([xs[rank] * (name + 1.0) for rank in users]))
        for rank, out in zip(users, joined.split(3), strict=True):
            xs[rank] = xs[rank] + out**2
    torch.cat(xs).sum().backward()
    found = branches(calls, rows)
    for (gradient, _, buffers), part in zip(found, parts, strict=True):
        torch.testing.assert_close(gradient, part.grad, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(buffers, list(module.buffers()), rtol=1e-12, atol=1e-12)
    for number, parameter in enumerate(module.parameters()):
        known = [grads[number] for _, grads, _ in found if grads[number] is not None]
        assert bool(known) == (parameter.grad is not None)
        if known:
            torch.testing.assert_close(sum(known), parameter.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("calls", [([1, 0], [0]), ([0, 0], [0]), ([2, 0], [0, 2])], ids=str)
def test_layers_in_another_order_are_refused_on_all_ranks(calls):
    """One rank would compute statistics of a layer before another rank has called it."""

    def work(group):
        module, statistics = Branches(), BatchStatistics(group)
        synchronize(module, statistics)
        statistics.begin(counts=True)
        x = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
        with pytest.raises(UnsupportedError, match="in different orders"):
            statistics.end(module(x, calls[group.shard.rank]))

    on_ranks(len(calls), work)


def test_only_ranks_without_rows_have_called_a_layer():
    """Nothing is remembered, and nothing becomes nan."""

    def work(group):
        layer, statistics = nn.BatchNorm1d(1), BatchStatistics(group)
        synchronize(layer, statistics)
        statistics.begin(counts=group.shard.rank == 0)
        out = torch.zeros(1, 1, requires_grad=True) * 1.0
        if group.shard.rank:
            out = layer(torch.ones(1, 1, requires_grad=True) * 3.0)
        statistics.end(out.sum()).backward()
        return out.isfinite().all().item(), layer.running_mean.item(), layer.running_var.item()

    assert on_ranks(2, work) == [(True, 0.0, 1.0)] * 2


def test_every_sum_is_counted():
    """A layer of 3 channels: ranks, the sums of values and their number; mean, square, number."""

    def work(group):
        layer, x = nn.BatchNorm1d(3).double(), batch((7, 3))
        statistics = BatchStatistics(group)
        synchronize(layer, statistics)
        layer(x[group.shard.rank :: 2].requires_grad_()).sum().backward()
        return statistics.take_traffic(), statistics.take_traffic()

    for traffic, after in on_ranks(2, work):
        # One exchange before and one after the mean is known, and one in the backward pass; each
        # of two ranks sends each number of eight bytes once.
        assert traffic.bytes == 2 * 8 * ((2 + 3 + 1) + 7 + 7)
        assert traffic.wait_seconds > 0
        assert (after.bytes, after.wait_seconds) == (0, 0.0)
