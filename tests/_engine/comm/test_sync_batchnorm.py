"""BatchNorm over all ranks equals BatchNorm over the global batch."""

import copy

import pytest
import torch
from torch import nn

from accelerando._engine.comm.sync_batchnorm import BatchStatistics, synchronize
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
        torch.testing.assert_close(out, expected[0][rank::2], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(x_grad, expected[1][rank::2], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(buffers, expected[3], rtol=1e-10, atol=1e-10)
        assert all(map(torch.equal, buffers, found[0][3]))
    for number, gradient in enumerate(expected[2]):
        total = found[0][2][number] + found[1][2][number]
        torch.testing.assert_close(total, gradient, rtol=1e-9, atol=1e-9)


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
        statistics.counts = group.shard.rank == 0
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
