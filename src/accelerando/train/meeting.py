"""What happens to the parameters of ranks when they meet, or when others take their place.

When that is, is the business of :class:`~accelerando.train.averaging.Together`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from accelerando.sync import Average, Averaging, Outer, Pull
from accelerando.train.company import Company
from accelerando.train.fleet import Fleet, total
from accelerando.train.joint import square_of


def rule_of(strategy: Averaging, ranks: int) -> Average | Pull | Outer:
    """Return what happens when so many ranks meet; one that is alone has nobody to be pulled to."""
    rule = strategy.rule(ranks)
    return Average() if ranks == 1 and isinstance(rule, Pull) else rule


class Meeting(NamedTuple):
    """What is known when ranks meet; models are joined.

    Attributes
    ----------
    told : list of list of Tensor
        What each rank of this process has told; it may have taken a step since.
    means : list of Tensor
        Of all ranks.
    spread : float
        S_k, the mean squared distance of their parameters from the mean.
    """

    told: list[list[torch.Tensor]]
    means: list[torch.Tensor]
    spread: float


Ask = Callable[[Sequence[float], Sequence[torch.Tensor]], Callable[[], list[float]]]


class Call:
    """Ranks say where they are; what the others said they may ask after having gone on.

    S_k is a second message when all have heard the first, since only then the mean is known. Where
    there is a central model, which all know before, distances from that are told with all else.

    Parameters
    ----------
    fleet : Fleet
        The ranks of this process.
    ask : callable
        See :meth:`~accelerando.train.company.Company.ask`.
    numbers : sequence of float
        What else is told.
    pulled : bool
        Whether a central model pulls the ranks.
    """

    def __init__(
        self, fleet: Fleet, ask: Ask, numbers: Sequence[float] = (), *, pulled: bool = False
    ) -> None:
        self.fleet, self.pulled = fleet, pulled
        self.told = fleet.told()
        self.sums = total(self.told)
        own = [self._square(fleet.centre)] if pulled else []
        self._answer = ask([*numbers, *own], self.sums)

    def answer(self) -> tuple[list[float], Meeting]:
        """Return the sums of the numbers, and what ranks need to go on."""
        fleet, heard = self.fleet, self._answer()
        means = self.sums
        torch._foreach_div_(means, fleet.size)
        if self.pulled:
            moved = square_of(means[: len(fleet.centre)], fleet.centre)
            spread = max(0.0, heard.pop() / fleet.size - moved)
        else:
            parameters = means[: fleet.joint.n_parameters]
            spread = fleet.world.total(self._square(parameters))[0] / fleet.size
        return heard, Meeting(self.told, means, spread)

    def _square(self, model: Sequence[torch.Tensor]) -> float:
        """Return the sum of the squared distances of this process's ranks from a model."""
        return sum(square_of(told[: len(model)], model) for told in self.told)


def merge(fleet: Fleet, rule: Average | Pull | Outer, met: Meeting, *, anew: bool = False) -> None:
    """Do to the ranks what a rule says, and show the result.

    Statistics of BatchNorm are averaged under every rule. With `anew`, ranks that stay apart under
    a rule are all put where the central model is.
    """
    n, means = fleet.joint.n_parameters, met.means
    centre, pace = fleet.centre, fleet.pace
    if isinstance(rule, Pull):
        _pull(fleet, rule, met)
        steps = torch._foreach_sub(means[:n], centre)
        torch._foreach_mul_(steps, rule.alpha * fleet.size)
        torch._foreach_add_(steps, torch._foreach_sub(centre, pace), alpha=rule.momentum)
        torch._foreach_copy_(pace, centre)
        torch._foreach_add_(centre, steps)
        means[:n] = centre
    elif isinstance(rule, Outer):
        changes = torch._foreach_sub(centre, means[:n])
        torch._foreach_mul_(pace, rule.momentum)
        torch._foreach_add_(pace, changes)
        torch._foreach_add_(changes, pace, alpha=rule.momentum)
        torch._foreach_add_(centre, changes, alpha=-rule.lr)
        means[:n] = centre
    elif rule.optimizer_state == "reset":
        fleet.reset_memories()
    if anew or not isinstance(rule, Pull):
        fleet.put(means)
    fleet.show(means)


def _pull(fleet: Fleet, rule: Pull, met: Meeting) -> None:
    """Move each rank by a part of its distance from the centre when it was told, and no more.

    A step taken since then is kept; so is what BatchNorm has seen in it.
    """
    n = fleet.joint.n_parameters
    for rank, told in zip(fleet.ranks, met.told, strict=True):
        torch._foreach_sub_(told, [*fleet.centre, *met.means[n:]])
        torch._foreach_mul_(told[:n], rule.alpha)
        torch._foreach_sub_([rank[k] for k in fleet.floats], fleet.joint.parts(told))


def show(net: Any) -> None:
    """Let a net's module be what the estimator would return now; its ranks stay as they are."""
    fleet: Fleet | None = net.fleet_
    if fleet is None or net.run_.sync["since"] == 0:  # it is shown since they met
        return
    means = fleet.mean()
    if isinstance(rule_of(net.strategy_, fleet.size), Pull):
        means[: fleet.joint.n_parameters] = fleet.centre
    fleet.show(means)


def settle(net: Any, world: Company, *, standing: bool) -> None:
    """Let the ranks of a new group go on together, newcomers and those who have been there.

    Newcomers begin with the model that the estimator would return. If ranks have taken steps since
    they met, because one of them was lost before the next meeting, those who are left are averaged.

    Parameters
    ----------
    net : estimator
        Of this rank; it has the position, and if it is a newcomer the state, of one that stands.
    world : Company
        The new group.
    standing : bool
        Whether this rank has been there before.
    """
    sync, rule = net.run_.sync, rule_of(net.strategy_, world.part.size)
    if not standing:
        saved, net.saved_ranks_ = net.saved_ranks_, None
        net.fleet_ = Fleet(net, 1, world)
        net.fleet_.take_centre(saved)
    fleet: Fleet = net.fleet_
    fleet.world = world
    if isinstance(rule, Average) and fleet.centre:  # one is left, and goes on from the centre
        _let_all_be(fleet, fleet.centre)
        fleet.centre, fleet.pace, sync["since"] = [], [], 0
    if sync["since"] == 0 or isinstance(rule, Pull):  # with a central model they stay apart
        return
    _let_all_be(fleet, fleet.mean_of_some(counts=standing))
    if isinstance(rule, Average):
        sync["since"], sync["count"] = 0, sync["count"] + 1


def _let_all_be(fleet: Fleet, joined: Sequence[torch.Tensor]) -> None:
    fleet.put(joined)
    fleet.show(joined)
