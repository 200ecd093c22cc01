"""ATOMO: keep a few atoms of the gradient, drawn with the probabilities of least variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from accelerando._validation import check, check_choice, check_number
from accelerando.compress import _entries, _shared
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._draws import drawn
from accelerando.compress._fourier import fourier, inverse_fourier
from accelerando.compress._matrix import Atoms, decompose, matrix_shape
from accelerando.compress._payload import Reader, stored, working_dtype
from accelerando.compress._probabilities import atom_probabilities

KINDS = {"auto": 5, "svd": 5, "entries": 6, "fourier": 7}
_SORTS = {"auto": ("svd", "entries"), "svd": ("svd",), "entries": ("entries",)}
_BUDGET = 3.0
_FEWEST = 32  # numbers of a tensor that is divided into atoms by bytes
_OVERSAMPLING = 8
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
    budget : float or None, default=None
        The expected number of atoms of a tensor; 3 if neither `budget` nor `share` is given. With
        entries or Fourier coefficients, a number below 1 is a share of the tensor's entries, at
        least one entry.
    atoms : {"auto", "svd", "entries", "fourier"}, default="auto"
        ``"svd"``: singular vectors of the gradient as a matrix; each takes as many numbers as the
        matrix has rows and columns. ``"entries"``: single entries. ``"fourier"``: real Fourier
        coefficients of the flat tensor, not with `share`. ``"auto"`` is "svd" with a budget; with a
        share, each layer has the sort of atoms with the smaller error for its bytes.
    method : {"auto", "exact", "randomized"}, default="auto"
        The algorithm for singular vectors. "auto" is "exact" for matrices with few columns.
        "randomized" takes less time and has a larger variance. Both are unbiased.
    share : float or None, default=None
        The expected bytes of all layers together, relative to float32; in place of `budget`. The
        numbers of singular vectors have four bits, and the bytes go to the layers, and to the
        atoms, where they reduce the variance most. Then p is proportional to :math:`|λ_i|` over the
        square root of the atom's bytes.

    Notes
    -----
    Atoms are drawn systematically: their number is its expectation, rounded up or down, so that
    messages of all ranks have about the same length. If `budget` atoms take as many numbers as the
    tensor, the tensor is sent uncompressed; with a share, a tensor of fewer than 32 numbers is. In
    an update on a cluster, a share is divided among the layers when the backward pass has ended;
    with a budget, layers are sent during it.

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
    budget: float | None = None
    atoms: str = "auto"
    method: str = "auto"
    share: float | None = None

    def _check(self) -> None:
        if self.budget is not None:
            check_number(self, "budget", self.budget, above=0)
        check_choice(self, "atoms", self.atoms, KINDS)
        check_choice(self, "method", self.method, _METHODS)
        vectors = self.atoms in ("auto", "svd")
        allowed = f"'auto' with atoms={self.atoms!r}, since it chooses how to find singular vectors"
        check(self.method == "auto" or vectors, self, "method", allowed, self.method)
        if self.share is None:
            return
        check_number(self, "share", self.share, above=0, below=1)
        allowed = f"None with share={self.share!r}, which counts bytes in place of atoms"
        check(self.budget is None, self, "budget", allowed, self.budget)
        allowed = "'auto', 'svd' or 'entries' with a share"
        check(self.atoms in _SORTS, self, "atoms", allowed, self.atoms)

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings; a new share replaces a budget, and vice versa."""
        for new, old in (("share", "budget"), ("budget", "share")):
            if changes.get(new) is not None and getattr(self, old) is not None:
                changes.setdefault(old, None)
        return super().with_settings(**changes)

    @property
    def kind(self) -> int:  # type: ignore[override]
        """The number of the body's format."""
        return KINDS[self.atoms] if self.share is None else _shared.KIND

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """True if layers share their bytes."""
        return self.share is not None

    @property
    def _budget(self) -> float:
        return _BUDGET if self.budget is None else self.budget

    def _bodies(
        self,
        numbers: Sequence[torch.Tensor],
        limits: Sequence[float],
        generator: torch.Generator | None,
    ) -> list[bytes | None]:
        if self.share is None:
            return super()._bodies(numbers, limits, generator)
        found: list[bytes | None] = [None] * len(numbers)
        large = [n for n, one in enumerate(numbers) if _has_atoms(one)]
        coded = _shared.bodies(
            [numbers[n] for n in large],
            [limits[n] for n in large],
            generator,
            share=self.share,
            sorts=_SORTS[self.atoms],
            exact=_METHODS[self.method],
        )
        for n, body in zip(large, coded, strict=True):
            found[n] = body
        return found

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        if _is_tiny(numbers):
            return None
        if self.kind == KINDS["svd"]:
            return self._encode_svd(numbers, limit, generator)
        budget = self._entries(numbers.numel())
        if budget >= numbers.numel():
            return None
        coefficients = self._coefficients(numbers.reshape(-1))
        if self.atoms == "fourier":
            limit /= math.sqrt(numbers.numel())  # the largest sum of coefficients
        probabilities = atom_probabilities(coefficients, budget)
        kept = drawn(probabilities, generator)
        return _entries.encode(coefficients, probabilities, kept, limit)

    def _encode_svd(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        rows, columns = matrix_shape(numbers.shape)
        if self._budget * (rows + columns) >= rows * columns:
            return None
        largest = float(numbers.abs().max())
        if largest == 0.0:
            return _entries.COUNT.pack(0)
        # Squares of very large or very small numbers overflow or underflow in float32.
        found = self._decomposed(numbers / largest)
        weights = found.weights
        if not float(weights.sum()) * largest * max(1.0, 1.0 / self._budget) <= limit:
            return None
        probabilities = atom_probabilities(weights, self._budget)
        kept = drawn(probabilities, generator)
        left = found.left[:, kept] / probabilities[kept] * largest
        factors = torch.cat([left, found.right[:, kept]]).T.contiguous()
        return (
            _entries.COUNT.pack(len(kept)) + factors.numpy().astype(stored(factors.dtype)).tobytes()
        )

    def _decomposed(self, numbers: torch.Tensor) -> Atoms:
        matrix = numbers.reshape(matrix_shape(numbers.shape))
        rank = math.ceil(2 * self._budget) + _OVERSAMPLING
        return decompose(matrix, rank, exact=_METHODS[self.method])

    def _entries(self, n: int) -> float:
        return max(1.0, self._budget * n) if self._budget < 1 else self._budget

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
        if not numbers.numel() or not numbers.any() or _is_tiny(numbers):
            return 0.0  # zero, or sent as it is
        if self.share is not None:
            if not _has_atoms(numbers):
                return 0.0
            sorts, exact = _SORTS[self.atoms], _METHODS[self.method]
            return _shared.expected_error(numbers, share=self.share, sorts=sorts, exact=exact)
        # Squares of very large or very small numbers overflow or underflow in float32.
        largest = float(numbers.abs().max())
        numbers = numbers / largest
        if self.kind == KINDS["svd"]:
            rows, columns = matrix_shape(numbers.shape)
            if self._budget * (rows + columns) >= rows * columns:
                return 0.0
            weights, budget = self._decomposed(numbers).weights, self._budget
        else:
            budget = self._entries(numbers.numel())
            weights = self._coefficients(numbers.reshape(-1))
        probabilities = atom_probabilities(weights, budget).double()
        possible = probabilities > 0
        square = weights.double().square()[possible]
        return float((square / probabilities[possible] - square).sum()) * largest * largest


def _has_atoms(numbers: torch.Tensor) -> bool:
    """Return True unless an atom takes more bytes than the tensor, or has no significant bits."""
    return numbers.numel() >= _FEWEST and not _is_tiny(numbers)


def _is_tiny(numbers: torch.Tensor) -> bool:
    """Return True if coefficients would be subnormal numbers, with few significant bits."""
    return 0.0 < float(numbers.abs().max()) < 1e8 * torch.finfo(numbers.dtype).tiny


@body_decoder(KINDS["svd"])
def _decode_svd(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    (rank,) = reader.fields(_entries.COUNT)
    rows, columns = matrix_shape(shape)
    if rank > 2 * (rows + columns):
        raise ValueError(f"{rank} atoms of a matrix of {rows} times {columns}")
    encoded = reader.array(stored(dtype), rank * (rows + columns)).reshape(rank, rows + columns)
    factors = torch.from_numpy(encoded.astype(encoded.dtype.newbyteorder("=")))
    return (factors[:, :rows].T @ factors[:, rows:]).reshape(-1)


body_decoder(KINDS["entries"])(_entries.decode)


@body_decoder(KINDS["fourier"])
def _decode_fourier(
    reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    return inverse_fourier(_entries.decode(reader, n, dtype, shape))
