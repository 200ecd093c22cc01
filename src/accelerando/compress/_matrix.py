"""A layer's gradient as a matrix, and the matrix as a sum of rank-one atoms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

EXACT_UP_TO = 64  # columns; beyond, the whole decomposition takes longer than it saves
_OVERSAMPLING = 8


class Atoms(NamedTuple):
    """A matrix as Σᵢ left[:, i] right[:, i]ᵀ; every column of `right` has length one.

    The weight λᵢ of an atom is the length of its left column.
    """

    left: torch.Tensor
    right: torch.Tensor

    @property
    def weights(self) -> torch.Tensor:
        """λ."""
        found: torch.Tensor = torch.linalg.vector_norm(self.left, dim=0)
        return found


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the matrix that a gradient of this shape is read as.

    A convolution's [x, y, k, k] becomes [xy/2, 2k²] (section 3.3.5 of the dissertation), a matrix
    stays what it is, and a vector becomes as square as its length allows.

    >>> matrix_shape((64, 32, 3, 3)), matrix_shape((10, 84)), matrix_shape((12,))
    ((1024, 18), (10, 84), (3, 4))
    """
    n = math.prod(shape)
    if len(shape) > 2:
        rows, columns = shape[0] * shape[1], math.prod(shape[2:])
        return (rows // 2, 2 * columns) if rows % 2 == 0 else (rows, columns)
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    rows = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return rows, n // rows


def decompose(matrix: torch.Tensor, budget: float, *, exact: bool | None) -> Atoms:
    """Write a matrix as a sum of atoms of rank one, the heaviest of them near-singular vectors.

    For any orthonormal V, A = Σ (A vᵢ) vᵢᵀ holds without an error, so that rounding in V costs
    variance and never bias. A small matrix gets all eigenvectors of AᵀA. Of a larger one only the
    leading ones are found, by two steps of subspace iteration, and what remains,
    R = A − A V Vᵀ, is divided into its columns: R has a flat spectrum, for which columns weigh
    little more than singular vectors.
    """
    if matrix.shape[0] < matrix.shape[1]:
        turned = decompose(matrix.T, budget, exact=exact)
        return Atoms(*_lengths_left(turned.right, turned.left))
    columns = matrix.shape[1]
    rank = min(columns, math.ceil(2 * budget) + _OVERSAMPLING)
    if exact is None:
        exact = columns <= max(EXACT_UP_TO, 2 * rank)
    if exact:
        # The Gram matrix costs half of a singular value decomposition, or less.
        _, vectors = torch.linalg.eigh(matrix.T @ matrix)
        vectors = _orthonormal(vectors)
        return Atoms(matrix @ vectors, vectors)
    vectors = _leading(matrix, rank)
    left = matrix @ vectors
    rest = matrix - left @ vectors.T
    eye = torch.eye(columns, dtype=matrix.dtype)
    return Atoms(torch.cat([left, rest], dim=1), torch.cat([vectors, eye], dim=1))


def _leading(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """Return orthonormal columns that nearly span the leading right singular vectors.

    The same start for the same shape: what is decoded depends on the gradient and the generator.
    """
    start = torch.Generator().manual_seed(0)
    found = torch.randn(matrix.shape[1], rank, dtype=matrix.dtype, generator=start)
    for _ in range(2):
        found = _orthonormal(matrix.T @ (matrix @ found))
    # Within the subspace, singular vectors concentrate the weight in as few atoms as possible.
    inner = matrix @ found
    _, turn = torch.linalg.eigh(inner.T @ inner)
    return _orthonormal(found @ turn)


def _orthonormal(vectors: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.qr(vectors).Q
    return found


def _lengths_left(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the lengths of the right columns to the left ones."""
    lengths = torch.linalg.vector_norm(right, dim=0)
    return left * lengths, right / torch.where(lengths > 0, lengths, 1.0)
