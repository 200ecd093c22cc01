"""Shards: which rank adds up which rows of the exchanged tensors.

If every rank sends all it has to all others, n ranks send n (n - 1) messages as long as the model.
In two phases they send 2 (n - 1) of them, as a plain all-reduce does: each rank gets its shard of
all others, decodes and adds it up, and sends the encoded sum to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

SMALL = 1024  # entries; encoding fewer takes longer than sending them
TWO_PHASES = 4  # ranks; with fewer, two phases save a third of the bytes or less


class Rows(NamedTuple):
    """A range of rows of a tensor of some shape."""

    start: int
    stop: int
    shape: torch.Size


class Piece(NamedTuple):
    """A tensor, or rows of one, which is replaced by the sum over the ranks.

    Attributes
    ----------
    name : str
        Of the parameter.
    gradient : Tensor
        Its gradient, or whatever else ranks add up.
    whole : bool
        Not to be compressed.
    rows : Rows or None
        Which rows these are, if the tensor was divided.
    """

    name: str
    gradient: torch.Tensor
    whole: bool
    rows: Rows | None = None

    @property
    def place(self) -> str:
        """The name, and the rows."""
        return self.name if self.rows is None else f"{self.name}[{self.rows[0]}:{self.rows[1]}]"


def in_two_phases(pieces: Sequence[Piece], size: int) -> bool:
    """Return True if ranks add up shards.

    All ranks must come to the same answer before anything is sent. So it follows from the sizes
    alone: ranks must be at least four, and each must get a shard that is worth encoding.
    """
    return size >= TWO_PHASES and sum(one.gradient.numel() for one in pieces) >= SMALL * size


def divide(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """Divide pieces into one shard for each rank, as equal as rows allow.

    Compressed tensors and others are divided separately, so that every rank has its share of both.
    Parts are views of the tensors. A matrix is cut between rows and stays a matrix; nothing is cut
    off that would be too small to be encoded.

    Examples
    --------
    >>> shards = divide([Piece("w", torch.zeros(100, 40), False)], 3)
    >>> [[piece.place for piece in shard] for shard in shards]
    [['w[0:33]'], ['w[33:67]'], ['w[67:100]']]
    """
    shards: list[list[Piece]] = [[] for _ in range(size)]
    for whole in (False, True):
        some = [piece for piece in pieces if piece.whole == whole]
        total, done = sum(one.gradient.numel() for one in some), 0
        for piece in some:
            numel = piece.gradient.numel()
            for part in _cut(piece, [k * total // size - done for k in range(1, size)]):
                first = 0 if part.rows is None else part.rows.start * (numel // part.rows.shape[0])
                middle = done + first + part.gradient.numel() // 2
                shards[min(size - 1, middle * size // max(1, total))].append(part)
            done += numel
    return shards


def _cut(piece: Piece, borders: Sequence[int]) -> list[Piece]:
    """Cut a piece at the rows that are nearest to some of its entries."""
    tensor = piece.gradient
    if tensor.dim() == 0 or not tensor.numel():
        return [piece]
    n = tensor.shape[0]
    of_row = tensor.numel() // n
    least = 1 if piece.whole else -(-SMALL // of_row)  # rows of a part
    cuts = [0]
    for border in borders:
        row = (2 * border + of_row) // (2 * of_row)
        if row - cuts[-1] >= least and n - row >= least:
            cuts.append(row)
    if len(cuts) == 1:
        return [piece]
    pairs = zip(cuts, [*cuts[1:], n], strict=True)
    return [piece._replace(gradient=tensor[a:b], rows=Rows(a, b, tensor.shape)) for a, b in pairs]
