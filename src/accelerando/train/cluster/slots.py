"""Numbers that travel in the message of a sum of tensors, and come out exact.

A message of single precision would round what ranks tell each other. Every rank has slots of its
own in it, which are zero on all other ranks: the sum is then what each of them wrote, three pieces
of single precision for every number of double precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accelerando.train.feed import Part

PIECES = 3  # of 24 bits, for 53
BYTES = 4 * PIECES  # of a number, in single precision


def write(numbers: Sequence[float], part: Part) -> torch.Tensor:
    """Return one rank's slots, and zeros for those of the others.

    Examples
    --------
    >>> sent = [write([0.1 * rank, rank], Part(rank, 3)) for rank in range(3)]
    >>> read(sent[0] + sent[1] + sent[2], 3) == [0.1 * 0 + 0.1 * 1 + 0.1 * 2, 3.0]
    True
    """
    slots = torch.zeros(part.size, PIECES, len(numbers))
    rest = torch.tensor(numbers, dtype=torch.float64)
    for piece in slots[part.rank]:
        piece.copy_(rest)
        # What is not finite, or becomes so, is all in the first piece.
        rest = (rest - piece).nan_to_num(0.0, 0.0, 0.0)
    return slots.flatten()


def read(total: torch.Tensor, ranks: int) -> list[float]:
    """Return the sums of the numbers over the ranks from the sum of what they wrote."""
    slots = total.to("cpu", torch.float64).view(ranks, PIECES, -1)
    return slots.sum(1).sum(0).tolist()
