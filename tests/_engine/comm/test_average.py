"""Averaging: exchanges, rules, and ranks that come and go."""

import pytest
import torch
from torch import nn

from accelerando._engine.comm import average
from accelerando._engine.comm.average import AverageRequest, apply_rule, mean_moments, rule_for
from accelerando._engine.comm.members import PlainExchange, VirtualGroup
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.model import Components
from accelerando.sync import (
    Average,
    ElasticAveraging,
    Outer,
    OuterOptimizer,
    PeriodicAveraging,
    Pull,
)
from tests._engine.comm.ranks import model_of, on_ranks, state_of


class Two(nn.Module):
    """One parameter, one statistic, one counter."""

    def __init__(self, value=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value], dtype=torch.float64))
        self.register_buffer("statistic", torch.tensor([value + 100.0], dtype=torch.float64))
        self.register_buffer("counter", torch.tensor(int(value)))


def replicas_at(*values, center=None, memory=None):
    module = Two()
    replicas = ReplicaSet(Components({"module": module}, {}, {}), here=len(values))
    for tensors, value in zip(replicas.tensors, values, strict=True):
        tensors[0].fill_(value)
        tensors[1].fill_(value + 100.0)
        tensors[2].fill_(int(value))
    if center is not None:
        replicas.center = [torch.tensor([center], dtype=torch.float64)]
        replicas.center_memory = [torch.tensor([memory], dtype=torch.float64)]
    return module, replicas


def averaged(replicas, group, *, pulled=False, numbers=()):
    request = AverageRequest(replicas, group, PlainExchange(group), numbers, pulled=pulled)
    return request.wait()


def positions(replicas):
    return [float(tensors[0]) for tensors in replicas.tensors]


# -- exchanges ------------------------------------------------------------------------------------


def test_a_request_yields_the_mean_and_the_spread():
    _, replicas = replicas_at(1.0, 3.0, 8.0)
    numbers, found = averaged(replicas, VirtualGroup(3), numbers=[7.0])
    assert numbers == [7.0]
    assert [float(mean) for mean in found.means] == [4.0, 104.0]
    assert found.spread == pytest.approx((9 + 1 + 16) / 3)  # of parameters, not of statistics
    assert positions(replicas) == [1.0, 3.0, 8.0]


@pytest.mark.parametrize("pulled", [True, False])
def test_ranks_agree_on_the_same_spread_with_and_without_a_center(pulled):
    """With a center, distances from it are sent before the mean is known."""
    values = [1.0, 3.0, 8.0]

    def work(group):
        _, replicas = replicas_at(values[group.shard.rank], center=2.0, memory=0.0)
        numbers, found = averaged(replicas, group, pulled=pulled, numbers=[1.0])
        return numbers, [float(mean) for mean in found.means], found.spread

    for numbers, means, spread in on_ranks(3, work):
        assert numbers == [3.0]
        assert means == [4.0, 104.0]
        assert spread == pytest.approx(26 / 3)


def test_the_spread_of_equal_replicas_is_not_negative():
    _, replicas = replicas_at(0.1, 0.1, 0.1, center=1e8, memory=0.0)
    assert averaged(replicas, VirtualGroup(3), pulled=True)[1].spread == 0.0


# -- rules ----------------------------------------------------------------------------------------


def test_averages_put_all_replicas_to_the_mean():
    module, replicas = replicas_at(1.0, 3.0)
    _, found = averaged(replicas, VirtualGroup(2))
    apply_rule(replicas, Average(), found, ranks=2)
    assert positions(replicas) == [2.0, 2.0]
    assert module.w.item() == 2.0
    assert module.statistic.item() == 102.0
    assert [int(tensors[2]) for tensors in replicas.tensors] == [1, 3]
    assert int(module.counter) == 1


def test_a_pull_uses_positions_before_the_step():
    module, replicas = replicas_at(2.0, 6.0, center=1.0, memory=0.0)
    group = VirtualGroup(2)
    request = AverageRequest(replicas, group, PlainExchange(group), pulled=True)
    for tensors in replicas.tensors:
        tensors[0] += 10.0  # a step while the exchange is on its way
    _, found = request.wait()
    apply_rule(replicas, Pull(alpha=0.5, momentum=0.25), found, ranks=2)
    # By half of 2 - 1 and of 6 - 1, less than the step.
    assert positions(replicas) == [2.0 + 10.0 - 0.5, 6.0 + 10.0 - 2.5]
    # The center moves by their sum, and by a quarter of its last step of 1 - 0.
    assert float(replicas.center[0]) == 1.0 + 3.0 + 0.25
    assert float(replicas.center_memory[0]) == 1.0
    assert module.w.item() == 4.25
    # Statistics are averaged and not pulled.
    assert [float(tensors[1]) for tensors in replicas.tensors] == [104.0, 104.0]


def test_pulled_replicas_may_all_continue_from_the_center():
    _, replicas = replicas_at(2.0, 6.0, center=1.0, memory=1.0)
    _, found = averaged(replicas, VirtualGroup(2), pulled=True)
    apply_rule(replicas, Pull(alpha=0.5), found, ranks=2, restart=True)
    assert positions(replicas) == [4.0, 4.0]


def test_an_outer_step_follows_the_mean_change_with_nesterovs_momentum():
    module, replicas = replicas_at(2.0, 4.0, center=5.0, memory=8.0)
    _, found = averaged(replicas, VirtualGroup(2))
    apply_rule(replicas, Outer(lr=0.5, momentum=0.25), found, ranks=2)
    # Δ = 5 - 3 = 2, v = 0.25 · 8 + 2 = 4, z = 5 - 0.5 (2 + 0.25 · 4).
    assert positions(replicas) == [3.5, 3.5]
    assert float(replicas.center_memory[0]) == 4.0
    assert module.w.item() == 3.5


def test_a_single_rank_is_not_pulled():
    assert rule_for(ElasticAveraging(1), 1) == Average()
    assert isinstance(rule_for(ElasticAveraging(1), 2), Pull)
    assert isinstance(rule_for(OuterOptimizer(2), 1), Outer)


# -- momentum -------------------------------------------------------------------------------------


def test_moments_that_all_replicas_have_are_averaged_and_steps_are_not():
    model = model_of()
    replicas = ReplicaSet(model.components, here=2)
    for number, value in enumerate((1.0, 5.0)):
        for memory in replicas.optimizer_state[number][0][: 3 + number]:
            memory.update(step=torch.tensor(value), moment=torch.full((2,), value))
    found = mean_moments(replicas, VirtualGroup(2))
    assert len(found) == 3  # the fourth parameter has a moment on one replica only
    for moments, mean in found:
        assert mean.tolist() == [3.0, 3.0]
        assert [float(one[0]) for one in moments] == [1.0, 5.0]


def test_ranks_whose_modules_skip_a_layer_make_the_same_exchanges():
    def work(group):
        rank = group.shard.rank
        replicas = ReplicaSet(model_of().components, here=1)
        for number, memory in enumerate(replicas.optimizer_state[0][0]):
            if number != rank:
                memory["moment"] = torch.full((1,), 1.0 + rank)
        return [mean.tolist() for _, mean in mean_moments(replicas, group)]

    assert on_ranks(3, work) == [[[2.0]]] * 3


# -- showing and rejoining ------------------------------------------------------------------------


def state_at(*values, since, strategy, center=None, memory=None):
    module, replicas = replicas_at(*values, center=center, memory=memory)
    state = state_of(model_of(), strategy=strategy)
    state.components = Components({"module": module}, {}, {})
    state.replicas, state.averaging.since = replicas, since
    return state, module


def test_the_mean_is_shown_within_a_period():
    strategy = PeriodicAveraging(9)
    state, module = state_at(1.0, 5.0, since=2, strategy=strategy)
    average.show(state, strategy, VirtualGroup(2))
    assert (module.w.item(), module.statistic.item()) == (3.0, 103.0)
    assert positions(state.replicas) == [1.0, 5.0]


def test_the_center_is_shown_where_there_is_one():
    strategy = ElasticAveraging(9)
    state, module = state_at(1.0, 5.0, since=2, strategy=strategy, center=7.0, memory=0.0)
    average.show(state, strategy, VirtualGroup(2))
    assert (module.w.item(), module.statistic.item()) == (7.0, 103.0)


def test_nothing_is_shown_right_after_an_averaging_or_without_live_replicas():
    strategy = PeriodicAveraging(9)
    state, module = state_at(1.0, 5.0, since=0, strategy=strategy)
    average.show(state, strategy, VirtualGroup(2))
    state.averaging.since = 2
    state.replicas = ReplicaSet.saved(state.replicas.state_dict())
    average.show(state, strategy, VirtualGroup(2))
    assert module.w.item() == 0.0


def test_survivors_are_averaged_and_newcomers_start_from_their_mean():
    strategy = PeriodicAveraging(9)

    def work(group):
        rank = group.shard.rank
        state, module = state_at(1.0 + 2 * rank, since=4, strategy=strategy)
        state.averaging.count = 3
        average.rejoin(state, strategy, group, has_replica=rank < 2)
        return positions(state.replicas), module.w.item(), vars(state.averaging)

    expected = ([2.0], 2.0, {"since": 0, "count": 4})
    assert on_ranks(3, work) == [expected] * 3


def test_right_after_an_averaging_newcomers_start_from_the_loaded_model():
    strategy = PeriodicAveraging(9)

    def work(group):
        rank = group.shard.rank
        state, module = state_at(5.0, since=0, strategy=strategy)
        with torch.no_grad():
            module.w.fill_(5.0)  # as loaded from the rank furthest ahead
        if rank == 1:
            state.replicas = None
        average.rejoin(state, strategy, group, has_replica=rank == 0)
        return positions(state.replicas), state.averaging.count

    assert on_ranks(2, work) == [([5.0], 0)] * 2


def test_pulled_replicas_stay_where_they_are_and_newcomers_get_the_center():
    strategy = ElasticAveraging(2)

    def work(group):
        rank = group.shard.rank
        state, module = state_at(3.0, since=2, strategy=strategy, center=7.0, memory=6.0)
        if rank == 1:
            state.replicas = ReplicaSet.saved(state.replicas.state_dict())
            with torch.no_grad():
                module.w.fill_(7.0)
        average.rejoin(state, strategy, group, has_replica=rank == 0)
        replicas = state.replicas
        memory = float(replicas.center_memory[0])
        return positions(replicas), float(replicas.center[0]), memory, state.averaging.since

    assert on_ranks(2, work) == [([3.0], 7.0, 6.0, 2), ([7.0], 7.0, 6.0, 2)]


def test_the_last_rank_continues_from_the_center():
    strategy = ElasticAveraging(2)
    state, module = state_at(3.0, since=2, strategy=strategy, center=7.0, memory=6.0)
    average.rejoin(state, strategy, VirtualGroup(1), has_replica=True)
    assert positions(state.replicas) == [7.0]
    assert module.w.item() == 7.0
    assert (state.replicas.center, state.averaging.since) == ([], 0)


def test_ranks_with_an_outer_optimizer_are_averaged_and_keep_their_period():
    """The outer step is made when it is time, from the center that they still have."""
    strategy = OuterOptimizer(9)

    def work(group):
        state, _ = state_at(
            1.0 + 2 * group.shard.rank, since=4, strategy=strategy, center=7.0, memory=0.0
        )
        average.rejoin(state, strategy, group, has_replica=True)
        return positions(state.replicas), float(state.replicas.center[0]), vars(state.averaging)

    assert on_ranks(2, work) == [([2.0], 7.0, {"since": 4, "count": 0})] * 2
