"""Algorithm 2 of the dissertation: the probability with which Atomo keeps each atom."""

from __future__ import annotations

import torch

from accelerando._validation import check_number

_ROUNDS = 16


def atom_probabilities(weights: torch.Tensor, budget: float) -> torch.Tensor:
    r"""Return the probabilities that minimize the variance for an expected number of atoms.

    Solves

    .. math:: \min_p \sum_i λ_i² / p_i \quad\text{s.t.}\quad 0 < p_i ≤ 1,\; \sum_i p_i = s:

    The largest atoms have probability 1, the others a probability proportional to their size. The
    number of atoms with probability 1 is the first i, counted from 0, with
    :math:`|λ_i| (s - i) ≤ \sum_{j ≥ i} |λ_j|` in decreasing order. For gradients, the variant
    without sorting (appendix D.3) needs few rounds of O(n): atoms above their share get probability
    1, and the rest of the budget is divided again. If that needs too many rounds, the atoms are
    sorted in O(n log n) and all i are compared at once.

    Parameters
    ----------
    weights : torch.Tensor
        λ, in any order and of any sign. An atom of weight zero gets probability 0.
    budget : float
        s, the expected number of atoms; above 0. If it is at least the number of nonzero weights,
        all of them get probability 1.

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
    largest = sizes.max() if sizes.numel() else sizes.sum()
    if not float(largest) > 0:
        return torch.zeros_like(sizes)
    # Only ratios matter. Dividing first avoids overflow of the sums.
    sizes = (sizes / largest).double()
    if budget >= int((sizes > 0).sum()):
        return (sizes > 0).to(weights.dtype)
    share = _divided(sizes, budget, _ROUNDS)
    if share is None:
        share = _sorted(sizes, budget)
    return (sizes * share).clamp_(max=1.0).to(weights.dtype)


def _divided(sizes: torch.Tensor, budget: float, rounds: int) -> float | None:
    """Return the factor from size to probability; None if `rounds` rounds are not enough."""
    rest, certain = sizes, 0
    for _ in range(rounds):
        share = (budget - certain) / float(rest.sum())
        above = rest * share > 1
        more = int(above.sum())
        if not more:
            return share
        rest, certain = rest[~above], certain + more
    return None


def _sorted(sizes: torch.Tensor, budget: float) -> float:
    ordered = sizes.sort(descending=True).values
    tail = ordered.flip(0).cumsum(0).flip(0)  # from the small end: no cancellation
    certain = int((ordered * (budget - torch.arange(len(ordered))) <= tail).int().argmax())
    return (budget - certain) / float(tail[certain])
