"""Matrix atoms: a gradient as a matrix, and the matrix as a sum of rank-one matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

EXACT_UP_TO = 64  # columns; for more, a full decomposition takes longer than it saves
_OVERSAMPLING = 8


class Atoms(NamedTuple):
    """A matrix as Σᵢ left[:, i] right[:, i]ᵀ; every column of `right` has norm one.

    The weight λᵢ of an atom is the norm of its left column.
    """

    left: torch.Tensor
    right: torch.Tensor

    @property
    def weights(self) -> torch.Tensor:
        """The weights λ."""
        found: torch.Tensor = torch.linalg.vector_norm(self.left, dim=0)
        return found


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of the matrix that represents a gradient of this shape.

    A convolution's [x, y, k, k] becomes [xy/2, 2k²] (section 3.3.5 of the dissertation). A
    convolution with k = 1 is a matrix already, which keeps its shape, and a vector becomes as
    square as its length allows.

    >>> matrix_shape((64, 32, 3, 3)), matrix_shape((10, 84)), matrix_shape((12,))
    ((1024, 18), (10, 84), (3, 4))
    >>> matrix_shape((256, 64, 1, 1))
    (256, 64)
    """
    n = math.prod(shape)
    if len(shape) > 2 and math.prod(shape[2:]) > 1:
        rows, columns = shape[0] * shape[1], math.prod(shape[2:])
        return (rows // 2, 2 * columns) if rows % 2 == 0 else (rows, columns)
    if len(shape) >= 2:
        return int(shape[0]), int(shape[1])
    rows = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return rows, n // rows


def decompose(matrix: torch.Tensor, budget: float, *, exact: bool | None) -> Atoms:
    """Return rank-one atoms whose sum is the matrix; the heaviest are near singular vectors.

    For any orthonormal V, A = Σ (A vᵢ) vᵢᵀ is exact, so inaccuracies of V increase the variance
    and never cause bias. A small matrix gets all eigenvectors of AᵀA. For a larger one, two steps
    of subspace iteration find the leading ones, and the remainder R = A − A V Vᵀ is divided into
    its columns: R has a flat spectrum, for which columns are little heavier than singular vectors.
    """
    if matrix.shape[0] < matrix.shape[1]:
        transposed = decompose(matrix.T, budget, exact=exact)
        return Atoms(*_norms_left(transposed.right, transposed.left))
    columns = matrix.shape[1]
    rank = min(columns, math.ceil(2 * budget) + _OVERSAMPLING)
    if exact is None:
        exact = columns <= max(EXACT_UP_TO, 2 * rank)
    if exact:
        # The Gram matrix costs at most half of a singular value decomposition.
        _, vectors = torch.linalg.eigh(matrix.T @ matrix)
        vectors = _orthonormal(vectors)
        return Atoms(matrix @ vectors, vectors)
    vectors = _leading(matrix, rank)
    left = matrix @ vectors
    rest = matrix - left @ vectors.T
    eye = torch.eye(columns, dtype=matrix.dtype)
    return Atoms(torch.cat([left, rest], dim=1), torch.cat([vectors, eye], dim=1))


def _leading(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """Return orthonormal columns that approximately span the leading right singular vectors.

    The start depends on the shape only, so the payload depends on gradient and generator only.
    """
    start = torch.Generator().manual_seed(0)
    found = torch.randn(matrix.shape[1], rank, dtype=matrix.dtype, generator=start)
    for _ in range(2):
        found = _orthonormal(matrix.T @ (matrix @ found))
    # Inside the subspace, singular vectors concentrate the weight in as few atoms as possible.
    inner = matrix @ found
    _, turn = torch.linalg.eigh(inner.T @ inner)
    return _orthonormal(found @ turn)


def _orthonormal(vectors: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.qr(vectors).Q
    return found


def _norms_left(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the norms of the right columns to the left ones."""
    norms = torch.linalg.vector_norm(right, dim=0)
    return left * norms, right / torch.where(norms > 0, norms, 1.0)
