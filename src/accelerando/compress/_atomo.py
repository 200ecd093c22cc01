"""ATOMO: keep few atoms of the gradient, chosen at random with the best probabilities."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from accelerando.compress import _elias
from accelerando.compress._codec import BodyDecoder, Codec, body_decoder
from accelerando.compress._matrix import Atoms, decompose, matrix_shape
from accelerando.compress._payload import Reader, stored, working_dtype
from accelerando.compress._probabilities import atom_probabilities

SVD_KIND, ENTRIES_KIND, FOURIER_KIND, OWN_KIND = 5, 6, 7, 8
_RANK = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")  # atoms that were sure, atoms that were drawn

Transform = Callable[[torch.Tensor], torch.Tensor]
_METHODS = {"auto": None, "exact": True, "randomized": False}


@dataclass(frozen=True)
class Atomo(Codec):
    r"""Atomic sparsification with the smallest variance for its number of atoms.

    The gradient is a sum of atoms, :math:`g = \sum λ_i a_i`. Atom i is sent with probability
    :math:`p_i` and then divided by it:

    .. math:: ĝ = \sum_i \frac{t_i}{p_i} λ_i a_i, \quad t_i ∼ \text{Bernoulli}(p_i).

    It is unbiased, and :math:`E‖ĝ − g‖² = \sum λ_i² (1/p_i − 1)` is the least for the given
    :math:`\sum p_i`; see :func:`atom_probabilities`. An empty draw decodes to zero: drawing again
    would bias it.

    Parameters
    ----------
    budget : float, default=3
        Expected number of atoms of a tensor. With other atoms than ``"svd"`` a number below 1 is a
        share of the tensor's entries, at least one.
    atoms : "svd", "entries", "fourier" or a pair of functions, default="svd"
        ``"svd"``: singular vectors of the gradient as a matrix, each as many numbers as the matrix
        has rows and columns together. ``"entries"``: single entries. ``"fourier"``: real Fourier
        coefficients of the flat tensor. Or an orthonormal transform of your own and its inverse,
        both from flat tensors to flat tensors of the same length.
    method : "auto", "exact" or "randomized", default="auto"
        How singular vectors are found; "auto" looks for all of them if the matrix has few columns.
        "randomized" takes less time and has a larger variance, and is no less unbiased.

    Notes
    -----
    Where `budget` atoms take as many numbers as the tensor itself, the tensor is sent as it is.

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
    atoms: str | tuple[Transform, Transform] = "svd"
    method: str = "auto"

    def __post_init__(self) -> None:
        number = isinstance(self.budget, int | float) and not isinstance(self.budget, bool)
        if not number or not 0 < self.budget < math.inf:
            raise ValueError(f"budget of Atomo must be a number above 0. Got {self.budget!r}.")
        pair = isinstance(self.atoms, tuple) and len(self.atoms) == 2
        if self.atoms not in ("svd", "entries", "fourier") and not (
            pair and all(callable(function) for function in self.atoms)
        ):
            raise ValueError(
                'atoms of Atomo must be "svd", "entries", "fourier", or a pair of functions '
                f"(transform, inverse). Got {self.atoms!r}."
            )
        if self.method not in _METHODS:
            raise ValueError(
                f'method of Atomo must be "auto", "exact" or "randomized". Got {self.method!r}.'
            )
        if self.method != "auto" and self.atoms != "svd":
            raise ValueError(
                f"method={self.method!r} says how singular vectors are found, and atoms are "
                f'{self.atoms!r}. Leave method at "auto".'
            )

    @property
    def kind(self) -> int:  # type: ignore[override]
        """The number of the body's format."""
        kinds = {"svd": SVD_KIND, "entries": ENTRIES_KIND, "fourier": FOURIER_KIND}
        return kinds[self.atoms] if isinstance(self.atoms, str) else OWN_KIND

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        largest = float(numbers.abs().max())
        if 0 < largest < 1e8 * torch.finfo(numbers.dtype).tiny:
            return None  # coefficients would be denormal numbers, with few digits or none
        if self.atoms == "svd":
            return self._spectral(numbers, limit, generator)
        budget = self._entries(numbers.numel())
        if budget >= numbers.numel():
            return None
        coefficients = self._coefficients(numbers.reshape(-1))
        if self.atoms != "entries":
            limit /= math.sqrt(numbers.numel())  # the most that coefficients can add up to
        return _kept_entries(coefficients, budget, limit, generator)

    def _spectral(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        rows, columns = matrix_shape(numbers.shape)
        if self.budget * (rows + columns) >= rows * columns:
            return None
        largest = float(numbers.abs().max())
        if largest == 0.0:
            return _RANK.pack(0)
        # Squares of very large or very small numbers leave the range of float32.
        found = self._decomposed(numbers / largest)
        weights = found.weights
        if not float(weights.sum()) * largest * max(1.0, 1.0 / self.budget) <= limit:
            return None
        chances = atom_probabilities(weights, self.budget)
        kept = _drawn(chances, generator)
        left = found.left[:, kept] / chances[kept] * largest
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
        # Sums of very large numbers leave the range of float32.
        return self._transformed(flat / largest) * largest

    def _transformed(self, flat: torch.Tensor) -> torch.Tensor:
        if isinstance(self.atoms, str):
            return fourier(flat)
        transform, inverse = self.atoms
        found = transform(flat.clone())
        if found.shape != flat.shape:
            raise ValueError(
                f"The transform in atoms must keep the length of {flat.numel()}; it returned "
                f"shape {tuple(found.shape)}."
            )
        size, tolerance = float(torch.linalg.vector_norm(flat.double())), 1e-3
        change = abs(float(torch.linalg.vector_norm(found.double())) - size)
        back = float(torch.linalg.vector_norm((inverse(found.clone()) - flat).double()))
        if max(change, back) > tolerance * size:
            raise ValueError(
                "The transform in atoms must be orthonormal and the second function its inverse. "
                f"For a tensor of norm {size:.4g} the norm changes by {change:.4g}, and the "
                f"inverse of the transform is off by {back:.4g}."
            )
        return found.to(flat.dtype)

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return Σ λᵢ² (1/pᵢ − 1)."""
        numbers = tensor.detach().to(working_dtype(tensor.dtype))
        if not numbers.numel():
            return 0.0
        if self.atoms == "svd":
            rows, columns = matrix_shape(numbers.shape)
            if self.budget * (rows + columns) >= rows * columns:
                return 0.0
            weights, budget = self._decomposed(numbers).weights, self.budget
        else:
            budget = self._entries(numbers.numel())
            weights = self._coefficients(numbers.reshape(-1))
        chances = atom_probabilities(weights, budget).double()
        there = chances > 0
        square = weights.double().square()[there]
        return float((square / chances[there] - square).sum())

    def _decoder(self) -> BodyDecoder:
        if isinstance(self.atoms, str):
            return super()._decoder()
        inverse = self.atoms[1]

        def read(r: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
            return inverse(_decode_entries(r, n, dtype, shape)).to(dtype)

        return read


def _drawn(chances: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    draws = torch.rand(chances.shape, dtype=torch.float64, generator=generator)
    return torch.nonzero(draws < chances).reshape(-1)


def _kept_entries(
    values: torch.Tensor, budget: float, limit: float, generator: torch.Generator | None
) -> bytes | None:
    """Write the sure entries as numbers, and of the drawn ones the signs.

    Whatever is drawn with pᵢ = |λᵢ|c has the same absolute value afterwards, 1/c.
    """
    n = values.numel()
    if not float(values.abs().max()) <= limit:
        return None
    chances = atom_probabilities(values, budget)
    kept = _drawn(chances, generator)
    sure = chances[kept] == 1
    some = torch.nonzero((chances < 1) & (chances > 0)).reshape(-1)
    common = 0.0
    if len(some):
        heaviest = some[values[some].abs().argmax()]
        common = float(values[heaviest].abs().double() / chances[heaviest].double())
    if not common <= limit:
        return None
    safe, drawn = kept[sure].numpy(), kept[~sure].numpy()
    numbers = np.append(values.numpy()[safe], common).astype(stored(values.dtype))
    return b"".join(
        (
            _COUNTS.pack(len(safe), len(drawn)),
            numbers.tobytes(),
            _elias.encode_positions(safe, n),
            _elias.encode_positions(drawn, n),
            np.packbits(values.numpy()[drawn] < 0, bitorder="little").tobytes(),
        )
    )


@body_decoder(SVD_KIND)
def _decode_svd(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    (rank,) = reader.fields(_RANK)
    rows, columns = matrix_shape(shape)
    if rank > 2 * (rows + columns):
        raise ValueError(f"{rank} atoms of a matrix of {rows} times {columns}")
    stamped = reader.array(stored(dtype), rank * (rows + columns)).reshape(rank, rows + columns)
    factors = torch.from_numpy(stamped.astype(stamped.dtype.newbyteorder("=")))
    return (factors[:, :rows].T @ factors[:, rows:]).reshape(-1)


@body_decoder(ENTRIES_KIND)
def _decode_entries(
    reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    safe, drawn = reader.fields(_COUNTS)
    if safe + drawn > n:
        raise ValueError(f"{safe + drawn} entries of {n}")
    numbers = reader.array(stored(dtype), safe + 1)
    found = torch.zeros(n, dtype=dtype)
    array = found.numpy()
    array[_elias.decode_positions(reader, safe, n)] = numbers[:-1]
    there = _elias.decode_positions(reader, drawn, n)
    signs = np.unpackbits(reader.array("u1", -(-drawn // 8)), count=drawn, bitorder="little")
    array[there] = np.where(signs, -numbers[-1], numbers[-1])
    return found


@body_decoder(FOURIER_KIND)
def _decode_fourier(
    reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    return inverse_fourier(_decode_entries(reader, n, dtype, shape))


def fourier(flat: torch.Tensor) -> torch.Tensor:
    """Return the coefficients in the real, orthonormal Fourier basis.

    First the real parts, then the imaginary ones; each frequency but 0 and n/2 stands for two
    conjugate ones, hence the √2.
    """
    found = torch.fft.rfft(flat, norm="ortho") * math.sqrt(2)
    found[0] /= math.sqrt(2)
    n = flat.numel()
    if n % 2 == 0:
        found[-1] /= math.sqrt(2)
    return torch.cat([found.real, found.imag[1 : (n + 1) // 2]])


def inverse_fourier(coefficients: torch.Tensor) -> torch.Tensor:
    """Undo :func:`fourier`."""
    n = coefficients.numel()
    half = n // 2 + 1
    imaginary = torch.zeros(half, dtype=coefficients.dtype)
    imaginary[1 : (n + 1) // 2] = coefficients[half:]
    found = torch.complex(coefficients[:half].clone(), imaginary) / math.sqrt(2)
    found[0] *= math.sqrt(2)
    if n % 2 == 0:
        found[-1] *= math.sqrt(2)
    flat: torch.Tensor = torch.fft.irfft(found, n=n, norm="ortho")
    return flat
