"""Matrix atoms: a gradient as a matrix, and the matrix as a sum of rank-one matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

EXACT_UP_TO = 64  # columns; for more, a full decomposition takes longer than it saves


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


def unfolded_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of the matrix with one row per output of a layer.

    A convolution's [x, y, k, k] becomes [x, yk²], in which few singular vectors hold most of a
    gradient.

    >>> unfolded_shape((64, 32, 3, 3)), unfolded_shape((10, 84)), unfolded_shape((12,))
    ((64, 288), (10, 84), (3, 4))
    """
    if len(shape) > 2:
        return int(shape[0]), math.prod(shape[1:])
    return matrix_shape(shape)


def decompose(matrix: torch.Tensor, rank: int, *, exact: bool | None) -> Atoms:
    """Return rank-one atoms whose sum is the matrix and which are orthogonal to each other.

    For orthogonal atoms the error is the sum of the errors of the atoms, however their draws depend
    on each other. A matrix with few rows or columns gets its singular vectors. A larger one gets
    `rank` leading right vectors V by subspace iteration, and the rows of the remainder A − A V Vᵀ,
    which are orthogonal to V.
    """
    if matrix.shape[0] > matrix.shape[1]:
        found = decompose(matrix.T, rank, exact=exact)
        return Atoms(*_norms_left(found.right, found.left))
    rows = matrix.shape[0]
    if exact is None:
        exact = rows <= max(EXACT_UP_TO, 2 * rank)
    if exact or rank >= rows:
        _, vectors = torch.linalg.eigh(matrix @ matrix.T)
        left = _orthonormal(vectors)
        return Atoms(*_norms_left(left, matrix.T @ left))
    right = _leading(matrix, rank)
    left = matrix @ right
    rest = matrix - left @ right.T
    eye = torch.eye(rows, dtype=matrix.dtype)
    return Atoms(*_norms_left(torch.cat([left, eye], dim=1), torch.cat([right, rest.T], dim=1)))


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
