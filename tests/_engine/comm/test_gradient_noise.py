"""Gradient norms of the parts of a batch."""

import pytest
import torch

from accelerando._engine.comm.communicator import PartNorms
from accelerando._engine.comm.gradient_noise import MicroBatchNorms


def test_gradients_are_set_aside_and_added_up_again():
    one, other = torch.zeros(2), torch.zeros(1)
    norms = MicroBatchNorms([one, other])
    one.grad = torch.tensor([1.0, 2.0])
    norms.set_aside()
    assert one.grad is None
    one.grad, other.grad = torch.tensor([3.0, 4.0]), torch.tensor([5.0])
    norms.set_aside()
    last = one.grad = torch.tensor([10.0, 20.0])
    norms.restore()
    assert one.grad is last  # under DDP it is a view of a bucket
    assert one.grad.tolist() == [14.0, 26.0]
    assert other.grad.tolist() == [5.0]


def test_sparse_gradients_are_added_up_too():
    parameter = torch.zeros(3, 1)
    norms = MicroBatchNorms([parameter])
    for row in (0, 2):
        parameter.grad = torch.eye(3)[:, row : row + 1].to_sparse()
        if row == 0:
            norms.set_aside()
    norms.restore()
    assert parameter.grad.to_dense().flatten().tolist() == [1.0, 0.0, 1.0]


def test_the_mean_squared_norm_is_weighted_by_mass():
    norms = MicroBatchNorms([])
    # Part i with mean gradient gᵢ and share mᵢ of the mass has the gradient mᵢ gᵢ.
    for mean, mass in ((2.0, 0.75), (4.0, 0.25)):
        norms.add((mass * mean) ** 2, mass)
    norms.add(0.0, 0.0)  # only ignored targets
    assert norms.result(sums=False) == PartNorms(2, pytest.approx(0.75 * 4 + 0.25 * 16))


def test_for_a_sum_over_rows_the_division_is_left_to_the_loop():
    norms = MicroBatchNorms([])
    for mean, rows in ((2.0, 6.0), (4.0, 2.0)):
        norms.add((rows * mean) ** 2, rows)
    number, square = norms.result(sums=True)
    assert (number, square / 8) == (2, pytest.approx(0.75 * 4 + 0.25 * 16))


def test_a_batch_without_mass_has_no_parts():
    assert MicroBatchNorms([]).result(sums=False) == PartNorms(0, 0.0)
