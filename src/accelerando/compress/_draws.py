"""Systematic sampling: draw atoms with given probabilities, and nearly always as many."""

from __future__ import annotations

import torch


def drawn(chances: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Return the atoms that are sent: a systematic sample with these probabilities.

    Along the sum of the probabilities, one random offset decides at which multiples of one an atom
    is taken. Every probability is exact, and among any neighbors the number of atoms is its
    expectation, rounded up or down: messages of all ranks have about the same length.

    Examples
    --------
    >>> chances = torch.tensor([1.0, 0.25, 0.25, 0.25, 0.25, 1.0])
    >>> len(drawn(chances, torch.Generator().manual_seed(0)))
    3
    """
    offset = float(torch.rand((), dtype=torch.float64, generator=generator))
    certain = chances >= 1
    sums = torch.where(certain, 0.0, chances.double()).cumsum(0) + offset
    before = torch.cat([torch.full((1,), offset, dtype=torch.float64), sums[:-1]])
    return torch.nonzero(certain | (sums.floor() > before.floor())).reshape(-1)
