"""The communicators of one process."""

import pytest
import torch

from accelerando._engine.comm.communicator import (
    LocalGradient,
    PartNorms,
    SingleProcess,
    UpdateResult,
    VirtualAllReduce,
    all_reduce_bytes,
    dropout_seed,
)
from accelerando._engine.data.feed import Batch
from tests._engine.comm.ranks import data_of, fit_of, model_of, plan_of, state_of, train


def test_one_process_agrees_with_itself():
    comm = SingleProcess()
    assert comm.sum(1.5, 2.0) == [1.5, 2.0]
    assert comm.mean_seconds(0.25) == (0.25, 0.0)
    result = UpdateResult(0.5, 1.0, 0.1, {})
    assert comm.after_step(None, plan_of(4), [result]) is result
    assert comm.row(None) == ()
    assert str(comm.period(None, 4)) == "nan"


def test_the_loss_of_micro_batches_is_their_sum():
    noise = PartNorms(2, 0.5)
    losses = [torch.tensor(0.25), torch.tensor(0.5)]
    found = SingleProcess().reduce(LocalGradient(losses, "predicted", noise), [])
    assert found == (torch.tensor(0.75), "predicted", noise)
    alone = SingleProcess().reduce(LocalGradient(losses[:1], None), [])
    assert alone.loss is losses[0]


def test_a_fit_without_replicas_drops_those_of_an_earlier_one():
    state = state_of(model_of())
    state.replicas = object()
    SingleProcess().begin_epoch(state)
    assert state.replicas is None


def test_the_whole_batch_goes_to_the_module_itself():
    comm, model = SingleProcess(), model_of()
    batch = Batch(data_of(3), 3, None, 3)
    (local,) = comm.local_batches(state_of(model), batch)
    with local.parameters():
        assert local.batch is batch
        assert comm.module(model.module) is model.module


def test_virtual_ranks_that_average_gradients_are_one_process_with_larger_batches():
    def ranks(spec):
        return VirtualAllReduce(3, n_bytes=100)

    several = train(fit_of(model_of(), ranks, rows=4, data=data_of(45)))
    one = train(fit_of(model_of(), rows=12, data=data_of(45)))
    tables = [fit.state.records.updates for fit in (several, one)]
    losses = [table.tensor()[:, table.columns.index("loss")] for table in tables]
    assert torch.equal(*losses)
    assert several.state.records.updates.newest()["ranks"] == 3
    assert several.state.records.updates.newest()["bytes"] == 2 * 2 * 100


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0), (2, 200), (5, 800)])
def test_bytes_of_a_ring(ranks, expected):
    assert all_reduce_bytes(100, ranks) == expected


def test_every_update_and_every_rank_has_its_own_dropout():
    seeds = {dropout_seed(s, u, r) for s in range(4) for u in range(50) for r in range(50)}
    assert len(seeds) == 4 * 50 * 50
    assert dropout_seed(3, 7, 2) == (3 * 1_000_003 + 7) * 1_009 + 2
    assert 0 <= dropout_seed(2**62, 1, 1) < 2**63
