"""Local SGD over a process group is what virtual ranks are."""

import math

import pytest
import torch

from accelerando._engine.comm.local_sgd import LocalSGD, VirtualGroup
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.step import update
from accelerando.sync import (
    AdaptiveAveraging,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    OuterOptimizer,
    PeriodicAveraging,
)
from tests._engine.comm.ranks import (
    column,
    data_of,
    fit_of,
    flat,
    model_of,
    on_ranks,
    plan_of,
    ranks_of,
    train,
)

SIZE = 3
STRATEGIES = {
    "periodic": PeriodicAveraging(3),
    "momentum averaged": PeriodicAveraging(3, optimizer_state="average"),
    "momentum reset": PeriodicAveraging(4, optimizer_state="reset"),
    "adaptive": AdaptiveAveraging(2, sample=0.4),
    "decreasing": DecreasingAveraging(6, every_epochs=1),
    "model": ModelAveraging(SIZE, momentum=0.3),
    "elastic": ElasticAveraging(period=3, beta=0.8),
    "outer": OuterOptimizer(inner_steps=3, lr=0.8, momentum=0.5),
}
COLUMNS = ("loss", "grad_norm", "period", "spread", "averagings", "ranks", "batch_size")


def fit_on(group, strategy, *, watch=0, **settings):
    needs_loss = "loss" in strategy.needs
    return ranks_of(strategy, group, rows=4, watch=watch, **{"exchanges": needs_loss, **settings})


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("exchanges", [True, False], ids=["every update", "when averaging"])
def test_ranks_are_what_virtual_ranks_are(name, exchanges):
    """BatchNorm, momentum, the last short batch, and all numbers that are recorded."""
    strategy = STRATEGIES[name]
    exchanges = exchanges or "loss" in strategy.needs
    virtual = train(ranks_of(strategy, VirtualGroup(SIZE), rows=4, watch=2))

    def work(group):
        return train(fit_on(group, strategy, watch=2, exchanges=exchanges))

    found = on_ranks(SIZE, work)
    for rank, fit in enumerate(found):
        shown = list(fit.model.module.state_dict().values())
        torch.testing.assert_close(shown, list(virtual.model.module.state_dict().values()))
        assert all(map(torch.equal, shown, found[0].model.module.state_dict().values()))
        (mine,) = fit.state.replicas.tensors
        torch.testing.assert_close(mine, virtual.state.replicas.tensors[rank])
        for title in COLUMNS:
            expected = pytest.approx(column(virtual, title), rel=1e-9, nan_ok=True)
            assert column(fit, title) == expected
        assert fit.state.averaging == virtual.state.averaging


@pytest.mark.parametrize(
    ("name", "numbers"),
    # Pause, switch, two clocks and the fingerprint, and what updates yielded since the last time;
    # pulled replicas send their distance from the center in the same message.
    [("periodic", 5 + 2 * 3), ("model", 5 + 2 + 1)],
)
def test_bytes_are_those_of_a_ring(name, numbers):
    fits = on_ranks(SIZE, lambda group: train(fit_on(group, STRATEGIES[name]), epochs=1))
    for fit in fits:
        tensors = fit.state.replicas.n_bytes + (0 if name == "model" else 8)
        expected = 2.0 * (SIZE - 1) * (tensors + 8 * numbers)
        sent = [0.0 if math.isnan(spread) else expected for spread in column(fit, "spread")]
        assert column(fit, "bytes") == sent
        assert any(sent)


def test_a_wish_to_pause_or_switch_is_known_after_the_next_exchange():
    def work(group):
        fit = fit_on(group, PeriodicAveraging(50), exchanges=True, epochs=1)
        group.pause = group.switch = group.shard.rank == 2
        fit.comm.begin_epoch(fit.state)
        batches = fit.feed.epoch(5, 0, 0, fit.comm.shard)
        update(fit, plan_of(12), batches.take(12))
        return group.paused, group.switching, fit.state.averaging.count

    # Other ranks continue from the average.
    assert on_ranks(SIZE, work) == [(True, True, 1)] * SIZE


@pytest.mark.parametrize("name", ["periodic", "model"])
def test_a_lost_rank_does_not_undo_the_step_of_the_others(name):
    def work(group):
        fit = fit_on(group, STRATEGIES[name], epochs=1)
        fit.comm.begin_epoch(fit.state)
        batches = fit.feed.epoch(5, 0, 0, fit.comm.shard)
        for number in range(4):
            if number == 2 and group.shard.rank == 2:
                fit.comm.close()
                return None
            result = update(fit, plan_of(12), batches.take(12))
            fit.state.advance(plan_of(12), 12, result.loss, result.grad_norm, SIZE)
            if group.failure is not None:
                break
        state = fit.state
        assert group.failure.__traceback__ is None
        return state.position.update, vars(state.averaging), flat(fit.model.module).isfinite().all()

    first, second, gone = on_ranks(SIZE, work)
    assert gone is None
    # The third update is complete, and nobody has averaged in it.
    counts = {"since": 3, "count": 0} if name == "periodic" else {"since": 2, "count": 1}
    assert first == second == (3, counts, True)


def test_ranks_of_a_new_group_continue():
    """Two of three ranks are left, a newcomer joins: all continue from the mean of the two."""
    strategy = PeriodicAveraging(50)
    states = {}

    def before(group):
        fit = train(fit_on(group, strategy, epochs=1), epochs=1)
        states[group.shard.rank] = fit
        return fit

    on_ranks(SIZE, before)
    survivors = [states[0], states[2]]
    expected = torch.stack([torch.cat(f.state.replicas.flatten()[0]) for f in survivors]).mean(0)
    newcomer = ranks_of(strategy, VirtualGroup(1), model=model_of(norm=True, seed=9))
    newcomer.model.module.load_state_dict(survivors[0].model.module.state_dict())
    newcomer.state.position = survivors[0].state.position
    newcomer.state.averaging.since = survivors[0].state.averaging.since
    fits = [*survivors, newcomer]

    def after(group):
        fit = fits[group.shard.rank]
        comm = LocalSGD(strategy, group, min_rows=2, drop_last=False, sums=False)
        comm.rejoin(fit.state, has_replica=group.shard.rank < 2)
        comm.begin_epoch(fit.state)  # keeps the replica
        return torch.cat(fit.state.replicas.flatten()[0]), vars(fit.state.averaging)

    for found, counts in on_ranks(SIZE, after):
        torch.testing.assert_close(found, expected)
        assert counts == {"since": 0, "count": 1}


@pytest.mark.parametrize("name", ["periodic", "model", "outer"])
def test_a_saved_state_is_continued_by_ranks_and_by_virtual_ranks(name):
    strategy = STRATEGIES[name]
    whole = train(ranks_of(strategy, VirtualGroup(SIZE), rows=4))
    half = train(ranks_of(strategy, VirtualGroup(SIZE), rows=4), epochs=1)
    saved, old = ReplicaSet.saved(half.state.replicas.state_dict()), half.state

    def work(group):
        fit = fit_on(group, strategy)
        fit.model.module.load_state_dict(half.model.module.state_dict())
        state = fit.state
        state.replicas = saved
        for field in ("epoch", "cursor", "update", "examples"):
            setattr(state.position, field, getattr(old.position, field))
        state.averaging.since, state.averaging.count = old.averaging.since, old.averaging.count
        state.memories.strategy = dict(old.memories.strategy)
        return flat(train(fit, epochs=1).model.module)

    for found in on_ranks(SIZE, work):
        torch.testing.assert_close(found, flat(whole.model.module))


def test_averaging_in_every_update_is_all_reduce():
    def work(group):
        settings = {"model": model_of(momentum=0.9), "data": data_of(47)}
        return flat(train(fit_on(group, PeriodicAveraging(1), **settings)).model.module)

    expected = train(fit_of(model_of(momentum=0.9), rows=12, data=data_of(47)))
    for found in on_ranks(SIZE, work):
        torch.testing.assert_close(found, flat(expected.model.module))
