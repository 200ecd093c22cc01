"""Averaging: ranks exchange the parameters of their replicas and apply a rule to the mean.

The time of an averaging is decided by :class:`~accelerando._engine.comm.local_sgd.LocalSGD`. This
module sends parameters, applies the rule of a strategy to their mean, and lets the ranks of a new
process group continue from one model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from accelerando._engine._torch import (
    Tensors,
    foreach_add_,
    foreach_copy_,
    foreach_div_,
    foreach_mul_,
    foreach_sub,
    foreach_sub_,
)
from accelerando._engine.comm.communicator import Traffic
from accelerando._engine.comm.flat_params import square_distance
from accelerando._engine.comm.replicas import ReplicaSet, is_moment
from accelerando._engine.data.feed import Shard
from accelerando.sync import Average, Averaging, Outer, Pull

if TYPE_CHECKING:
    from accelerando._engine.state import TrainState

Rule = Average | Pull | Outer
Waiter = Callable[[], list[float]]
"""Waits for messages; returns the sums of the numbers that were sent with them."""
MeanWaiter = Callable[[], tuple[list[float], Tensors]]
"""Waits for messages; returns the sums of the numbers, and the mean position."""


class Summing(Protocol):
    """Sums over the processes of a group, as averaging needs them.

    Attributes
    ----------
    shard : Shard
        This process among the processes.
    here : int
        Replicas of each process.
    """

    shard: Shard
    here: int

    def sum(self, *numbers: float) -> list[float]:
        """Return the sums of the numbers over the processes."""

    def sum_tensors(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()
    ) -> list[float]:
        """Sum tensors over the processes in place, and return the sums of the numbers."""


class TensorExchange(Protocol):
    """Exchange of the positions of replicas between processes."""

    def start(
        self, replicas: ReplicaSet, positions: Sequence[Tensors], numbers: Sequence[float]
    ) -> MeanWaiter:
        """Start to average flat positions, and to sum numbers, over the processes."""

    def begin(self, state: TrainState) -> None:
        """Prepare an exchange: seed the draws of codecs, and choose the codec."""

    def take_traffic(self) -> Traffic:
        """Return what the positions cost since the last call."""


def rule_for(strategy: Averaging, ranks: int) -> Rule:
    """Return the rule of a strategy; a single rank has nobody to be pulled to."""
    rule = strategy.rule(ranks)
    return Average() if ranks == 1 and isinstance(rule, Pull) else rule


def n_ranks(group: Summing) -> int:
    """Return the number of ranks of a group, virtual ones included."""
    return group.here * group.shard.size


class Averaged(NamedTuple):
    """The result of an exchange; models are flat.

    Attributes
    ----------
    positions : list of list of Tensor
        Where each replica of this process was when the exchange began; it may have moved since.
    means : list of Tensor
        Over all ranks.
    spread : float
        S_k, the mean squared distance of the ranks' parameters from their mean.
    """

    positions: list[Tensors]
    means: Tensors
    spread: float


class AverageRequest:
    """An exchange on its way: the positions of all replicas are being summed.

    S_k is a second message, because the mean is known only after the first one. Under a rule with a
    central model, which all ranks know in advance, squared distances from that model are sent with
    the first message instead.

    Parameters
    ----------
    replicas : ReplicaSet
        Of this process.
    group : Summing
        The processes.
    exchange : TensorExchange
        How the tensors travel.
    numbers : sequence of float
        Further numbers to sum.
    pulled : bool
        Whether a central model pulls the replicas.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        group: Summing,
        exchange: TensorExchange,
        numbers: Sequence[float] = (),
        *,
        pulled: bool = False,
    ) -> None:
        self.replicas, self.group, self.pulled = replicas, group, pulled
        self.positions = replicas.flatten()
        distances = [self._squares(replicas.center)] if pulled else []
        self._wait = exchange.start(replicas, self.positions, [*numbers, *distances])

    def wait(self) -> tuple[list[float], Averaged]:
        """Return the sums of the numbers, and the mean of the positions."""
        ranks = n_ranks(self.group)
        numbers, means = self._wait()
        if self.pulled:
            center = self.replicas.center
            moved = square_distance(means[: len(center)], center)
            spread = max(0.0, numbers.pop() / ranks - moved)
        else:
            parameters = means[: self.replicas.flat.n_parameters]
            spread = self.group.sum(self._squares(parameters))[0] / ranks
        return numbers, Averaged(self.positions, means, spread)

    def _squares(self, model: Sequence[torch.Tensor]) -> float:
        """Return the sum of the squared distances of this process's replicas from a model."""
        return sum(square_distance(one[: len(model)], model) for one in self.positions)


def sum_positions(positions: Sequence[Tensors]) -> Tensors:
    """Return the sum of flat models as new tensors."""
    sums = [tensor.clone() for tensor in positions[0]]
    for other in positions[1:]:
        foreach_add_(sums, other)
    return sums


def mean_of(replicas: ReplicaSet, group: Summing, *, counts: bool = True) -> Tensors:
    """Return the flat mean of all replicas of the processes that count. Collective."""
    sums = sum_positions(replicas.flatten())
    foreach_mul_(sums, float(counts))
    (number,) = group.sum_tensors(sums, [float(counts * group.here)])
    foreach_div_(sums, number)
    return sums


def mean_moments(replicas: ReplicaSet, group: Summing) -> list[tuple[Tensors, torch.Tensor]]:
    """Return the optimizer moments that all ranks have: those of each replica, and their mean.

    A rank whose module skipped a layer may have no moment for its parameters yet. So ranks first
    sum the number of those that have one: all make the same collective operations.
    """
    state, ranks = replicas.optimizer_state, n_ranks(group)
    places = [(a, b) for a, memories in enumerate(state[0]) for b in range(len(memories))]
    have = [float(sum(bool(one[a][b]) for one in state)) for a, b in places]
    found: list[tuple[Tensors, torch.Tensor]] = []
    for (a, b), number in zip(places, group.sum(*have), strict=True):
        if number == ranks:
            for name, value in state[0][a][b].items():
                if is_moment(name, value):
                    moments = [one[a][b][name] for one in state]
                    found.append((moments, torch.stack(moments).sum(0)))
    group.sum_tensors([total for _, total in found])
    for _, total in found:
        total /= ranks
    return found


def apply_rule(
    replicas: ReplicaSet, rule: Rule, averaged: Averaged, ranks: int, *, restart: bool = False
) -> None:
    r"""Move the replicas as a rule says, and show the result.

    Statistics of BatchNorm are averaged under every rule. With `restart`, replicas that a rule
    leaves apart all continue from the central model.

    Notes
    -----
    ``Average`` sets every replica to the mean :math:`\bar w`. ``Pull`` is elastic averaging (Zhang
    et al. 2015, arXiv:1412.6651) with momentum of the center as in CROSSBOW (Koliousis et al. 2019,
    arXiv:1901.02244). ``Outer`` is Nesterov's momentum on the mean change, as in DiLoCo (Douillard
    et al. 2023, arXiv:2311.08105). Their formulas are those of :mod:`accelerando.sync`.
    """
    n, means = replicas.flat.n_parameters, averaged.means
    center, memory = replicas.center, replicas.center_memory
    if isinstance(rule, Pull):
        _pull(replicas, rule, averaged)
        steps = foreach_sub(means[:n], center)
        foreach_mul_(steps, rule.alpha * ranks)
        foreach_add_(steps, foreach_sub(center, memory), alpha=rule.momentum)
        foreach_copy_(memory, center)
        foreach_add_(center, steps)
        means[:n] = center
    elif isinstance(rule, Outer):
        changes = foreach_sub(center, means[:n])
        foreach_mul_(memory, rule.momentum)
        foreach_add_(memory, changes)
        foreach_add_(changes, memory, alpha=rule.momentum)
        foreach_add_(center, changes, alpha=-rule.lr)
        means[:n] = center
    elif rule.optimizer_state == "reset":
        replicas.reset_optimizers()
    if restart or not isinstance(rule, Pull):
        replicas.set_all(means)
    replicas.show(means)


def _pull(replicas: ReplicaSet, rule: Pull, averaged: Averaged) -> None:
    """Move each replica by a share of its distance from the center when the exchange began.

    A step taken since then is kept, and so are the statistics that BatchNorm collected in it.
    """
    n = replicas.flat.n_parameters
    for number, position in enumerate(averaged.positions):
        foreach_sub_(position, [*replicas.center, *averaged.means[n:]])
        foreach_mul_(position[:n], rule.alpha)
        foreach_sub_(replicas.floats(number), replicas.flat.unflatten(position))


def show(state: TrainState, strategy: Averaging, group: Summing) -> None:
    """Let the module hold the model that the estimator would return now. Collective.

    The replicas stay as they are.
    """
    replicas = state.replicas
    if replicas is None or not replicas.bound or state.averaging.since == 0:
        return  # the last averaging has shown its result
    means = mean_of(replicas, group)
    if isinstance(rule_for(strategy, n_ranks(group)), Pull):
        means[: replicas.flat.n_parameters] = replicas.center
    replicas.show(means)


def rejoin(state: TrainState, strategy: Averaging, group: Summing, *, has_replica: bool) -> None:
    """Let the ranks of a new group continue, those with a replica and newcomers. Collective.

    Newcomers start from the model that the estimator would return. If a rank was lost before the
    next averaging, the replicas that are left are averaged now.

    Parameters
    ----------
    state : TrainState
        Of this rank, with the position of the rank that is furthest ahead; a newcomer has also
        loaded the model of that rank.
    strategy : Averaging
        With the rule.
    group : Summing
        The new group.
    has_replica : bool
        Whether this rank's replica counts.
    """
    averaging, rule = state.averaging, rule_for(strategy, n_ranks(group))
    if not has_replica:
        saved, state.replicas = state.replicas, ReplicaSet(state.components, group.here)
        if saved is not None and not saved.bound:
            state.replicas.restore_center(saved)
    replicas = state.replicas
    assert replicas is not None
    if isinstance(rule, Average) and replicas.center:  # one rank is left: it continues from there
        _continue_from(replicas, replicas.center)
        replicas.center, replicas.center_memory, averaging.since = [], [], 0
    if averaging.since == 0 or isinstance(rule, Pull):  # with a center replicas differ
        return
    _continue_from(replicas, mean_of(replicas, group, counts=has_replica))
    if isinstance(rule, Average):
        averaging.since, averaging.count = 0, averaging.count + 1


def agree(state: TrainState, group: Summing) -> None:
    """Let compressed averaging begin: all ranks remember the parameters that they agree on.

    If replicas differ, because they were saved without compression, they are averaged first.
    Collective.
    """
    replicas = state.replicas
    assert replicas is not None
    if state.averaging.since:
        _continue_from(replicas, mean_of(replicas, group))
        state.averaging.since = 0
    replicas.keep_reference()


def _continue_from(replicas: ReplicaSet, flat: Sequence[torch.Tensor]) -> None:
    replicas.set_all(flat)
    replicas.show(flat)
