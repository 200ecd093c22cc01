"""A few entries of the tensor as they are, and where they belong."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from accelerando.compress import _elias
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._payload import Reader, stored

TOP_KIND, RANDOM_KIND = 2, 3
_COUNT = struct.Struct("<Q")
_DRAWN = struct.Struct("<QQI")  # how many, the seed that says which, a check on the draw


@dataclass(frozen=True)
class TopK(Codec):
    """The largest entries, the rest zero. Biased: use it inside :class:`ErrorFeedback`.

    Parameters
    ----------
    fraction : float, default=0.01
        Share of the entries that are kept, at least one; above 0, at most 1.

    References
    ----------
    Aji and Heafield, Sparse communication for distributed gradient descent (2017); Stich et al.,
    Sparsified SGD with memory (2018).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import TopK
    >>> codec = TopK(fraction=0.5)
    >>> codec.decode(codec.encode(torch.tensor([1.0, -4.0, 3.0, 2.0])), (4,))
    tensor([ 0., -4.,  3.,  0.])
    """

    unbiased: ClassVar[bool] = False
    kind: ClassVar[int] = TOP_KIND
    fraction: float = 0.01

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        flat = numbers.reshape(-1)
        there, _ = self._largest(flat).sort()
        kept = flat[there].numpy().astype(stored(flat.dtype), copy=False)
        positions = _elias.encode_positions(there.numpy(), flat.numel())
        return b"".join((_COUNT.pack(len(kept)), positions, kept.tobytes()))

    def _largest(self, flat: torch.Tensor) -> torch.Tensor:
        count = kept_entries(flat.numel(), self.fraction)
        return flat.abs().topk(count, sorted=False).indices

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return the squares of what is left out."""
        flat = tensor.detach().reshape(-1).double()
        if flat.numel():
            flat[self._largest(flat)] = 0.0
        return float(flat.square().sum())


@dataclass(frozen=True)
class RandomK(Codec):
    """Entries chosen at random, the rest zero.

    Which ones follows from a seed in the payload: positions cost eight bytes together.

    Parameters
    ----------
    fraction : float, default=0.01
        Share of the entries that are kept, at least one; above 0, at most 1.
    rescale : bool, default=True
        Multiply what is kept by n / k, which makes it unbiased. Set it to False inside
        :class:`ErrorFeedback`, which sends what was left out later anyway.

    References
    ----------
    Konečný and Richtárik, Randomized distributed mean estimation (2018); Stich et al., Sparsified
    SGD with memory (2018).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import RandomK
    >>> codec = RandomK(fraction=0.5)
    >>> sorted(codec.decode(codec.encode(torch.ones(4)), (4,)).tolist())
    [0.0, 0.0, 2.0, 2.0]
    """

    kind: ClassVar[int] = RANDOM_KIND
    fraction: float = 0.01
    rescale: bool = True

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Whether the mean of what is decoded is the tensor."""
        return self.rescale or self.fraction == 1

    def _factor(self, n: int) -> float:
        return n / kept_entries(n, self.fraction) if self.rescale else 1.0

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        flat = numbers.reshape(-1)
        n = flat.numel()
        factor = self._factor(n)
        if not float(flat.abs().max()) <= limit / factor:
            return None
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        there = _drawn(seed, kept_entries(n, self.fraction), n)
        kept = (flat[torch.from_numpy(there)] * factor).numpy()
        head = _DRAWN.pack(len(there), seed, zlib.crc32(there.tobytes()))
        return head + kept.astype(stored(flat.dtype), copy=False).tobytes()

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return (n/k − 1)‖g‖², or (1 − k/n)‖g‖² without rescaling."""
        n = tensor.numel()
        square = float(tensor.detach().double().square().sum())
        if not n:
            return 0.0
        share = kept_entries(n, self.fraction) / n
        return square * (1 / share - 1 if self.rescale else 1 - share)


@body_decoder(TOP_KIND)
def _decode_top(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    (count,) = reader.fields(_COUNT)
    return _scattered(reader, _elias.decode_positions(reader, count, n), n, dtype)


@body_decoder(RANDOM_KIND)
def _decode_drawn(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    count, seed, check = reader.fields(_DRAWN)
    if count > n:
        raise ValueError(f"{count} entries of {n}")
    there = _drawn(seed, count, n)
    if zlib.crc32(there.tobytes()) != check:
        raise ValueError(
            "this NumPy draws other positions from the seed than the one that encoded; use the "
            "same version on all machines"
        )
    return _scattered(reader, there, n, dtype)


def _scattered(reader: Reader, there: np.ndarray, n: int, dtype: torch.dtype) -> torch.Tensor:
    found = torch.zeros(n, dtype=dtype)
    found.numpy()[there] = reader.array(stored(dtype), len(there))
    return found


def _drawn(seed: int, count: int, n: int) -> np.ndarray:
    draw = np.random.Generator(np.random.Philox(seed))
    chosen: np.ndarray = draw.choice(n, count, replace=False, shuffle=False)
    return chosen.astype("<i8", copy=False)


def kept_entries(n: int, fraction: float) -> int:
    """Return how many of n entries a fraction keeps."""
    return min(n, max(1, math.ceil(fraction * n)))


def check_fraction(codec: object, fraction: Any) -> None:
    """Raise unless a fraction lies in (0, 1]."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise ValueError(
            f"fraction of {type(codec).__name__} must lie above 0 and not above 1. Got "
            f"{fraction!r}."
        )
