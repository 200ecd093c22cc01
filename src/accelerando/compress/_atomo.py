"""ATOMO: keep a few atoms of the gradient, drawn with the probabilities of least variance."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from accelerando._validation import check, check_choice, check_number
from accelerando.compress import _elias
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._fourier import fourier, inverse_fourier
from accelerando.compress._matrix import Atoms, decompose, matrix_shape
from accelerando.compress._payload import Reader, stored, working_dtype
from accelerando.compress._probabilities import atom_probabilities

KINDS = {"svd": 5, "entries": 6, "fourier": 7}
_RANK = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")  # atoms with probability 1, atoms that were drawn
_METHODS = {"auto": None, "exact": True, "randomized": False}


@dataclass(frozen=True)
class Atomo(Codec):
    r"""Atomic sparsification with the least variance for its number of atoms.

    The gradient is a sum of atoms, :math:`g = \sum λ_i a_i`. Atom i is sent with probability
    :math:`p_i` and then divided by it:

    .. math:: ĝ = \sum_i \frac{t_i}{p_i} λ_i a_i, \quad t_i ∼ \text{Bernoulli}(p_i).

    The estimate is unbiased, and :math:`E‖ĝ − g‖² = \sum λ_i² (1/p_i − 1)` is the least for the
    given :math:`\sum p_i` (Algorithm 2 of the dissertation). An empty draw decodes to zero: another
    draw would be biased.

    Parameters
    ----------
    budget : float, default=3
        The expected number of atoms of a tensor. With atoms other than ``"svd"``, a number below 1
        is a share of the tensor's entries, at least one entry.
    atoms : {"svd", "entries", "fourier"}, default="svd"
        ``"svd"``: singular vectors of the gradient as a matrix; each takes as many numbers as the
        matrix has rows and columns. ``"entries"``: single entries. ``"fourier"``: real Fourier
        coefficients of the flat tensor.
    method : {"auto", "exact", "randomized"}, default="auto"
        The algorithm for singular vectors. "auto" is "exact" for matrices with few columns.
        "randomized" takes less time and has a larger variance. Both are unbiased.

    Notes
    -----
    If `budget` atoms take as many numbers as the tensor, the tensor is sent uncompressed.

    References
    ----------
    Section 3.3 and appendix D of the dissertation "Accelerating active machine learning" (S.
    Sievert); Wang et al., ATOMO: Communication-efficient learning via atomic sparsification (2018).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import Atomo
    >>> g = torch.outer(torch.arange(20.0), torch.arange(30.0))  # a single atom
    >>> codec = Atomo(budget=1)
    >>> payload = codec.encode(g, torch.Generator().manual_seed(0))
    >>> torch.allclose(codec.decode(payload, g.shape), g, atol=1e-3), len(payload)
    (True, 236)
    """

    unbiased: ClassVar[bool] = True
    budget: float = 3
    atoms: str = "svd"
    method: str = "auto"

    def _check(self) -> None:
        check_number(self, "budget", self.budget, above=0)
        check_choice(self, "atoms", self.atoms, KINDS)
        check_choice(self, "method", self.method, _METHODS)
        allowed = f"'auto' with atoms={self.atoms!r}, since it chooses how to find singular vectors"
        check(self.method == "auto" or self.atoms == "svd", self, "method", allowed, self.method)

    @property
    def kind(self) -> int:  # type: ignore[override]
        """The number of the body's format."""
        return KINDS[self.atoms]

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        largest = float(numbers.abs().max())
        if 0 < largest < _smallest(numbers.dtype):
            return None
        if self.atoms == "svd":
            return self._encode_svd(numbers, limit, generator)
        budget = self._entries(numbers.numel())
        if budget >= numbers.numel():
            return None
        coefficients = self._coefficients(numbers.reshape(-1))
        if self.atoms == "fourier":
            limit /= math.sqrt(numbers.numel())  # the largest sum of coefficients
        return _encode_entries(coefficients, budget, limit, generator)

    def _encode_svd(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        rows, columns = matrix_shape(numbers.shape)
        if self.budget * (rows + columns) >= rows * columns:
            return None
        largest = float(numbers.abs().max())
        if largest == 0.0:
            return _RANK.pack(0)
        # Squares of very large or very small numbers overflow or underflow in float32.
        found = self._decomposed(numbers / largest)
        weights = found.weights
        if not float(weights.sum()) * largest * max(1.0, 1.0 / self.budget) <= limit:
            return None
        probabilities = atom_probabilities(weights, self.budget)
        kept = _drawn(probabilities, generator)
        left = found.left[:, kept] / probabilities[kept] * largest
        factors = torch.cat([left, found.right[:, kept]]).T.contiguous()
        return _RANK.pack(len(kept)) + factors.numpy().astype(stored(factors.dtype)).tobytes()

    def _decomposed(self, numbers: torch.Tensor) -> Atoms:
        matrix = numbers.reshape(matrix_shape(numbers.shape))
        return decompose(matrix, self.budget, exact=_METHODS[self.method])

    def _entries(self, n: int) -> float:
        return max(1.0, self.budget * n) if self.budget < 1 else self.budget

    def _coefficients(self, flat: torch.Tensor) -> torch.Tensor:
        if self.atoms == "entries":
            return flat
        largest = float(flat.abs().max())
        if largest == 0.0:
            return flat
        # Sums of very large numbers overflow in float32.
        return fourier(flat / largest) * largest

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return Σ λᵢ² (1/pᵢ − 1)."""
        numbers = tensor.detach().to(working_dtype(tensor.dtype))
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        if largest < _smallest(numbers.dtype):
            return 0.0  # zero, or sent as it is
        # Squares of very large or very small numbers overflow or underflow in float32.
        numbers = numbers / largest
        if self.atoms == "svd":
            rows, columns = matrix_shape(numbers.shape)
            if self.budget * (rows + columns) >= rows * columns:
                return 0.0
            weights, budget = self._decomposed(numbers).weights, self.budget
        else:
            budget = self._entries(numbers.numel())
            weights = self._coefficients(numbers.reshape(-1))
        probabilities = atom_probabilities(weights, budget).double()
        possible = probabilities > 0
        square = weights.double().square()[possible]
        return float((square / probabilities[possible] - square).sum()) * largest * largest


def _smallest(dtype: torch.dtype) -> float:
    """Return the size below which coefficients are subnormal numbers, with few significant bits."""
    return 1e8 * torch.finfo(dtype).tiny


def _drawn(probabilities: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    draws = torch.rand(probabilities.shape, dtype=torch.float64, generator=generator)
    return torch.nonzero(draws < probabilities).reshape(-1)


def _encode_entries(
    values: torch.Tensor, budget: float, limit: float, generator: torch.Generator | None
) -> bytes | None:
    """Encode the values of entries with probability 1, and the signs of the drawn entries.

    All entries that are drawn with pᵢ = |λᵢ|c have the same absolute value λᵢ/pᵢ = 1/c.
    """
    n = values.numel()
    if not float(values.abs().max()) <= limit:
        return None
    probabilities = atom_probabilities(values, budget)
    kept = _drawn(probabilities, generator)
    is_certain = probabilities[kept] == 1
    uncertain = torch.nonzero((probabilities < 1) & (probabilities > 0)).reshape(-1)
    common = 0.0
    if len(uncertain):
        heaviest = uncertain[values[uncertain].abs().argmax()]
        common = float(values[heaviest].abs().double() / probabilities[heaviest].double())
    if not common <= limit:
        return None
    certain, drawn = kept[is_certain].numpy(), kept[~is_certain].numpy()
    numbers = np.append(values.numpy()[certain], common).astype(stored(values.dtype))
    return b"".join(
        (
            _COUNTS.pack(len(certain), len(drawn)),
            numbers.tobytes(),
            _elias.encode_positions(certain, n),
            _elias.encode_positions(drawn, n),
            np.packbits(values.numpy()[drawn] < 0, bitorder="little").tobytes(),
        )
    )


@body_decoder(KINDS["svd"])
def _decode_svd(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    (rank,) = reader.fields(_RANK)
    rows, columns = matrix_shape(shape)
    if rank > 2 * (rows + columns):
        raise ValueError(f"{rank} atoms of a matrix of {rows} times {columns}")
    encoded = reader.array(stored(dtype), rank * (rows + columns)).reshape(rank, rows + columns)
    factors = torch.from_numpy(encoded.astype(encoded.dtype.newbyteorder("=")))
    return (factors[:, :rows].T @ factors[:, rows:]).reshape(-1)


@body_decoder(KINDS["entries"])
def _decode_entries(
    reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    certain, drawn = reader.fields(_COUNTS)
    if certain + drawn > n:
        raise ValueError(f"{certain + drawn} entries of {n}")
    numbers = reader.array(stored(dtype), certain + 1)
    found = torch.zeros(n, dtype=dtype)
    array = found.numpy()
    array[_elias.decode_positions(reader, certain, n)] = numbers[:-1]
    positions = _elias.decode_positions(reader, drawn, n)
    signs = np.unpackbits(reader.array("u1", -(-drawn // 8)), count=drawn, bitorder="little")
    array[positions] = np.where(signs, -numbers[-1], numbers[-1])
    return found


@body_decoder(KINDS["fourier"])
def _decode_fourier(
    reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    return inverse_fourier(_decode_entries(reader, n, dtype, shape))
