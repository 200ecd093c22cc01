"""What happens to the parameters of ranks when they meet, or when others take their place.

When that is, is the business of :class:`~accelerando.train.averaging.Together`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accelerando.sync import Average, Averaging, Outer, Pull
from accelerando.train.company import Company
from accelerando.train.fleet import Fleet


def rule_of(strategy: Averaging, ranks: int) -> Average | Pull | Outer:
    """Return what happens when so many ranks meet; one that is alone has nobody to be pulled to."""
    rule = strategy.rule(ranks)
    return Average() if ranks == 1 and isinstance(rule, Pull) else rule


def merge(
    fleet: Fleet,
    rule: Average | Pull | Outer,
    means: list[torch.Tensor],
    moments: Sequence[tuple[list[torch.Tensor], torch.Tensor]] = (),
    *,
    anew: bool = False,
) -> None:
    """Do to the ranks what a rule says, and show the result.

    `means` are those of the ranks, `moments` what their optimizers remember and the means of that.
    Statistics of BatchNorm are averaged under every rule. With `anew`, ranks that stay apart under
    a rule are all put where the central model is.
    """
    n = fleet.n_parameters
    centre, pace = fleet.centre, fleet.pace
    if isinstance(rule, Pull):
        for rank in fleet.ranks:
            torch._foreach_lerp_(rank[:n], centre, rule.alpha)
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
    for of_ranks, mean in moments:
        for moment in of_ranks:
            moment.copy_(mean)
    apart = isinstance(rule, Pull) and not anew
    shared = [number for number in fleet.floats if number >= n or not apart]
    for rank in fleet.ranks if shared else ():
        torch._foreach_copy_([rank[k] for k in shared], [means[k] for k in shared])
    fleet.show(means)


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
