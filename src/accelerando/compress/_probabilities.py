"""Algorithm 2 of the dissertation: the probability with which Atomo keeps each atom."""

from __future__ import annotations

import torch

from accelerando._validation import check_number

_ROUNDS = 16


def atom_probabilities(
    weights: torch.Tensor, budget: float, costs: torch.Tensor | None = None
) -> torch.Tensor:
    r"""Return the probabilities that minimize the variance for an expected number of atoms.

    Solves

    .. math:: \min_p \sum_i λ_i² / p_i \quad\text{s.t.}\quad 0 < p_i ≤ 1,\; \sum_i c_i p_i = s:

    The atoms with the largest :math:`|λ_i| / \sqrt{c_i}` have probability 1, the others a
    probability proportional to it. With equal costs, the number of atoms with probability 1 is the
    first i, counted from 0, with :math:`|λ_i| (s - i) ≤ \sum_{j ≥ i} |λ_j|` in decreasing order.
    With other costs, i on the left is the cost of the atoms before, and each summand on the right
    is :math:`\sqrt{c_j} |λ_j|`. For gradients, the variant
    without sorting (appendix D.3) needs few rounds of O(n): atoms above their share get probability
    1, and the rest of the budget is divided again. If that needs too many rounds, the atoms are
    sorted in O(n log n) and all i are compared at once.

    Parameters
    ----------
    weights : torch.Tensor
        λ, in any order and of any sign. An atom of weight zero gets probability 0.
    budget : float
        s, the expected number of atoms, or their expected cost; above 0. If it is at least the cost
        of all nonzero weights, all of them get probability 1.
    costs : torch.Tensor, optional
        c, above 0; one if not given.

    References
    ----------
    Algorithm 2 and Theorem 23 in appendix D.1 of the dissertation "Accelerating active machine
    learning" (S. Sievert).

    Examples
    --------
    >>> import torch
    >>> atom_probabilities(torch.tensor([-8.0, 1.0, 1.0, 0.0]), budget=2)
    tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    check_number("atom_probabilities", "budget", budget, above=0)
    sizes = weights.detach().abs().reshape(-1)
    if costs is not None:
        sizes = sizes.double() / costs.double().sqrt()
    largest = sizes.max() if sizes.numel() else sizes.sum()
    if not float(largest) > 0:
        return torch.zeros_like(weights.reshape(-1))
    # Only ratios matter. Dividing first avoids overflow of the sums.
    sizes = (sizes / largest).double()
    costs = torch.ones_like(sizes) if costs is None else costs.double()
    if budget >= float(costs[sizes > 0].sum()):
        return (sizes > 0).to(weights.dtype)
    factor = _divided(sizes, costs, budget, _ROUNDS)
    if factor is None:
        factor = _sorted(sizes, costs, budget)
    return (sizes * factor).clamp_(max=1.0).to(weights.dtype)


def _divided(sizes: torch.Tensor, costs: torch.Tensor, budget: float, rounds: int) -> float | None:
    """Return the factor from size to probability; None if `rounds` rounds are not enough."""
    certain = 0.0
    for _ in range(rounds):
        factor = (budget - certain) / float((costs * sizes).sum())
        above = sizes * factor > 1
        if not bool(above.any()):
            return factor
        certain += float(costs[above].sum())
        sizes, costs = sizes[~above], costs[~above]
    return None


def _sorted(sizes: torch.Tensor, costs: torch.Tensor, budget: float) -> float:
    ordered, places = sizes.sort(descending=True)
    costs = costs[places]
    tail = (costs * ordered).flip(0).cumsum(0).flip(0)  # from the small end: no cancellation
    left = budget - (costs.cumsum(0) - costs)
    certain = int((ordered * left <= tail).int().argmax())
    return float(left[certain] / tail[certain])
