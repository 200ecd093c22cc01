"""Outputs of all ranks, gathered: the gradient is that of one process with the whole batch."""

import pytest
import torch

from accelerando._engine.comm.gather import Rows
from accelerando.exceptions import UnsupportedError
from tests._engine.comm.ranks import on_ranks

BATCH = torch.arange(10.0, dtype=torch.float64).reshape(5, 2) + 1.0


def loss_of(rows):
    """A loss that couples rows: squares of all pairwise differences."""
    return ((rows[:, None] - rows[None]) ** 2).sum() + (rows**3).sum()


@pytest.mark.parametrize(("size", "start"), [(2, 0), (2, 3), (3, 1)])
def test_rows_come_back_in_the_order_of_the_batch_and_so_do_gradients(size, start):
    whole = BATCH.clone().requires_grad_()
    loss_of(whole).backward()

    def work(group):
        rank, _ = group.shard
        mine = BATCH[(rank - start) % size :: size].clone().requires_grad_()
        rows = Rows(group, len(mine), start)
        gathered = rows.gather({"x": mine}, "outputs")["x"]
        (loss_of(gathered) / size).backward()
        return gathered.detach(), mine.grad

    for rank, (gathered, gradient) in enumerate(on_ranks(size, work)):
        assert torch.equal(gathered, BATCH)
        torch.testing.assert_close(gradient, whole.grad[(rank - start) % size :: size])


def test_rows_without_a_common_order_stay_in_that_of_the_ranks_and_a_rank_may_have_none():
    def work(group):
        held = 4 * (1 - group.shard.rank)
        mine = BATCH[: max(1, held)].clone()  # a rank without rows has one that does not count
        return Rows(group, held, 0).gather(mine, "outputs")

    assert all(torch.equal(found, BATCH[:4]) for found in on_ranks(2, work))


@pytest.mark.parametrize("output", [torch.tensor(1.0), torch.ones(3, 2), "text"])
def test_outputs_that_are_not_rows_are_refused(output):
    def work(group):
        with pytest.raises(UnsupportedError, match=r"the outputs must be tensors with one entry p"):
            Rows(group, 2, 0).gather([torch.ones(2), output], "outputs")

    on_ranks(1, work)
