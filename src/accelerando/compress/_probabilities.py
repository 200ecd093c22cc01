"""Algorithm 2: with which probability each atom is kept."""

from __future__ import annotations

import torch

_ROUNDS = 16


def atom_probabilities(weights: torch.Tensor, budget: float) -> torch.Tensor:
    r"""Return the probabilities that minimise the variance for a number of atoms.

    Solves

    .. math:: \min_p \sum_i λ_i² / p_i \quad\text{s.t.}\quad 0 < p_i ≤ 1,\; \sum_i p_i = s:

    the largest atoms are sure, the others in proportion to their size. How many are sure is the
    first i, counted from 0, with :math:`|λ_i| (s - i) ≤ \sum_{j ≥ i} |λ_j|` in decreasing order.
    Gradients need few rounds of the variant without sorting (appendix D.3), O(n) each: atoms above
    their share are sure, and the rest of the budget is divided again. Where that takes many rounds
    the atoms are sorted, O(n log n), and all i compared at once.

    Parameters
    ----------
    weights : torch.Tensor
        λ, in any order and of any sign. An atom of weight zero is never needed: it gets 0.
    budget : float
        s, the expected number of atoms, above 0. From the number of non-zero weights on, all of
        them get probability 1.

    References
    ----------
    Algorithm 2 and Theorem 23 in appendix D.1 of the dissertation "Accelerating active machine
    learning" (S. Sievert).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import atom_probabilities
    >>> atom_probabilities(torch.tensor([-8.0, 1.0, 1.0, 0.0]), budget=2)
    tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    if not budget > 0:
        raise ValueError(f"budget must be a number above 0. Got {budget!r}.")
    sizes = weights.detach().abs().reshape(-1)
    largest = sizes.max() if sizes.numel() else sizes.sum()
    if not float(largest) > 0:
        return torch.zeros_like(sizes)
    # Only ratios count. Dividing first keeps the sums away from overflow.
    sizes = (sizes / largest).double()
    if budget >= int((sizes > 0).sum()):
        return (sizes > 0).to(weights.dtype)
    share = _divided(sizes, budget, _ROUNDS)
    if share is None:
        share = _sorted(sizes, budget)
    return (sizes * share).clamp_(max=1.0).to(weights.dtype)


def _divided(sizes: torch.Tensor, budget: float, rounds: int) -> float | None:
    """Return what sizes are multiplied by, or None if so many rounds do not suffice."""
    unsure, sure = sizes, 0
    for _ in range(rounds):
        share = (budget - sure) / float(unsure.sum())
        over = unsure * share > 1
        more = int(over.sum())
        if not more:
            return share
        unsure, sure = unsure[~over], sure + more
    return None


def _sorted(sizes: torch.Tensor, budget: float) -> float:
    ordered = sizes.sort(descending=True).values
    rest = ordered.flip(0).cumsum(0).flip(0)  # from the small end: no cancellation
    sure = int((ordered * (budget - torch.arange(len(ordered))) <= rest).int().argmax())
    return (budget - sure) / float(rest[sure])
