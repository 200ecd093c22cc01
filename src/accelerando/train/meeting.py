"""What happens to the parameters of ranks when they meet, or when others take their place.

When that is, is the business of :class:`~accelerando.train.averaging.Together`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from accelerando.sync import Average, Averaging, Outer, Pull
from accelerando.train.company import Company
from accelerando.train.fleet import Fleet, square_of


def rule_of(strategy: Averaging, ranks: int) -> Average | Pull | Outer:
    """Return what happens when so many ranks meet; one that is alone has nobody to be pulled to."""
    rule = strategy.rule(ranks)
    return Average() if ranks == 1 and isinstance(rule, Pull) else rule


class Meeting(NamedTuple):
    """What is known when ranks meet.

    Attributes
    ----------
    means : list of Tensor
        Of the ranks' tensors.
    spread : float
        S_k, the mean squared distance of their parameters from the mean.
    before : sequence of list of Tensor
        The floating tensors of each rank of this process that were told, where a central model
        pulls them. They may have taken a step since.
    moments : sequence
        What optimizers of the ranks remember, and the mean of it, if that is averaged, too.
    """

    means: list[torch.Tensor]
    spread: float
    before: Sequence[list[torch.Tensor]] = ()
    moments: Sequence[tuple[list[torch.Tensor], torch.Tensor]] = ()


def gathered(fleet: Fleet, sums: list[torch.Tensor] | None, *, moments: bool) -> Meeting:
    """Add up over all ranks what they are now; `sums` are known if they have told them already."""
    means = fleet.mean(sums)
    spread = fleet.spread(means)
    return Meeting(means, spread, moments=fleet.mean_moments() if moments else ())


class Call:
    """Ranks say where they are; what the others said they may ask after having gone on.

    Everything is in one message, S_k, too: distances from the central model, which all know, stand
    in for those from the mean, which nobody knows yet.

    Parameters
    ----------
    fleet : Fleet
        The ranks of this process.
    ask : callable
        See :meth:`~accelerando.train.company.Company.ask`.
    numbers : sequence of float
        What else is told.
    """

    def __init__(
        self,
        fleet: Fleet,
        ask: Callable[[Sequence[float], Sequence[torch.Tensor]], Callable[[], list[float]]],
        numbers: Sequence[float] = (),
    ) -> None:
        self.fleet, self.centre = fleet, fleet.centre
        with torch.no_grad():
            self.before = [[rank[n].clone() for n in fleet.floats] for rank in fleet.ranks]
        self.sums = fleet.sums()
        own = sum(self._square(before) for before in self.before)
        self._answer = ask([*numbers, own], self.sums)

    def answer(self) -> tuple[list[float], Meeting]:
        """Return the sums of the numbers, and what ranks need to go on."""
        *told, square = self._answer()
        means = self.fleet.mean(self.sums)
        spread = square / self.fleet.size - self._square(means)
        return told, Meeting(means, max(0.0, spread), self.before)

    def _square(self, tensors: list[torch.Tensor]) -> float:
        """Return the squared distance of parameters from those of the central model."""
        with torch.no_grad():
            return square_of(torch._foreach_sub(tensors[: len(self.centre)], self.centre))


def merge(fleet: Fleet, rule: Average | Pull | Outer, met: Meeting, *, anew: bool = False) -> None:
    """Do to the ranks what a rule says, and show the result.

    Statistics of BatchNorm are averaged under every rule. With `anew`, ranks that stay apart under
    a rule are all put where the central model is.
    """
    n, means = fleet.n_parameters, met.means
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
    for of_ranks, mean in met.moments:
        for moment in of_ranks:
            moment.copy_(mean)
    if anew or not isinstance(rule, Pull):
        for rank in fleet.ranks:
            torch._foreach_copy_([rank[k] for k in fleet.floats], [means[k] for k in fleet.floats])
    fleet.show(means)


def _pull(fleet: Fleet, rule: Pull, met: Meeting) -> None:
    """Move each rank by a part of its distance from the centre when it was told, not by more.

    A step taken since then is kept; so is what BatchNorm has seen in it.
    """
    targets = [*fleet.centre, *(met.means[k] for k in fleet.floats[fleet.n_parameters :])]
    for rank, before in zip(fleet.ranks, met.before, strict=True):
        torch._foreach_sub_(before, targets)
        torch._foreach_mul_(before[: fleet.n_parameters], rule.alpha)
        torch._foreach_sub_([rank[k] for k in fleet.floats], before)


def show(net: Any) -> None:
    """Let a net's module be what the estimator would return now; its ranks stay as they are."""
    fleet: Fleet | None = net.fleet_
    if fleet is None or net.run_.sync["since"] == 0:  # it is shown since they met
        return
    means = fleet.mean()
    if isinstance(rule_of(net.strategy_, fleet.size), Pull):
        means[: fleet.n_parameters] = fleet.centre
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
        _put(fleet, fleet.centre)
        fleet.centre, fleet.pace, sync["since"] = [], [], 0
    if sync["since"] == 0 or isinstance(rule, Pull):  # with a central model they stay apart
        return
    _put(fleet, fleet.mean_of_some(counts=standing))
    if isinstance(rule, Average):
        sync["since"], sync["count"] = 0, sync["count"] + 1


def _put(fleet: Fleet, tensors: Sequence[torch.Tensor]) -> None:
    """Let all ranks, and the model that is shown, have these values; counters stay."""
    with torch.no_grad():
        for model in (*fleet.ranks, fleet.shown):
            for number in fleet.floats[: len(tensors)]:
                model[number].copy_(tensors[number])
