"""Sparsification: send a few entries of the tensor and their positions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from accelerando._validation import check_number
from accelerando.compress import _elias
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._payload import Reader, stored

KIND = 2
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True)
class TopK(Codec):
    """Keep the largest entries, set the rest to zero. Biased: use :class:`ErrorFeedback`.

    Parameters
    ----------
    fraction : float, default=0.01
        The share of the entries that are kept, at least one entry; above 0 and at most 1.

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
    kind: ClassVar[int] = KIND
    fraction: float = 0.01

    def _check(self) -> None:
        check_number(self, "fraction", self.fraction, above=0, maximum=1)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        flat = numbers.reshape(-1)
        positions, _ = self._largest(flat).sort()
        kept = flat[positions].numpy().astype(stored(flat.dtype), copy=False)
        encoded = _elias.encode_positions(positions.numpy(), flat.numel())
        return b"".join((_COUNT.pack(len(kept)), encoded, kept.tobytes()))

    def _largest(self, flat: torch.Tensor) -> torch.Tensor:
        count = kept_entries(flat.numel(), self.fraction)
        return flat.abs().topk(count, sorted=False).indices

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return the sum of the squares of the entries that are not kept."""
        flat = tensor.detach().reshape(-1).double()
        if flat.numel():
            flat[self._largest(flat)] = 0.0
        return float(flat.square().sum())


@body_decoder(KIND)
def _decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    (count,) = reader.fields(_COUNT)
    positions = _elias.decode_positions(reader, count, n)
    found = torch.zeros(n, dtype=dtype)
    found.numpy()[positions] = reader.array(stored(dtype), len(positions))
    return found


def kept_entries(n: int, fraction: float) -> int:
    """Return the number of entries that a fraction of n keeps, at least one.

    >>> kept_entries(250, 0.01), kept_entries(5, 0.01)
    (3, 1)
    """
    return min(n, max(1, math.ceil(fraction * n)))
