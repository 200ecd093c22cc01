"""Half precision: each entry is rounded to a 16-bit floating-point number."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from accelerando._validation import check_choice
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._payload import Reader, bytes_tensor, tensor_bytes, working_dtype

KIND = 9
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FORM = struct.Struct("<Bd")  # number of the dtype, largest entry


@dataclass(frozen=True)
class HalfPrecision(Codec):
    """Round each entry to the nearest 16-bit number: half of the bytes of float32.

    Entries are divided by the largest one first, so that small gradients do not become zero.

    Parameters
    ----------
    dtype : {"bfloat16", "float16"}, default="bfloat16"
        "bfloat16" has 8 significant bits. "float16" has 11, but below 6e-5 of the largest entry it
        loses them, and what is below 3e-8 of it becomes zero.

    Notes
    -----
    Rounding to the nearest number is biased, by at most 2⁻⁸ (or 2⁻¹¹) of an entry.

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import HalfPrecision
    >>> codec = HalfPrecision()
    >>> payload = codec.encode(torch.tensor([1.0, 1.001, -4.0]))
    >>> codec.decode(payload, (3,)), len(codec.encode(torch.ones(1000)))
    (tensor([ 1.,  1., -4.]), 2037)
    """

    unbiased: ClassVar[bool] = False
    kind: ClassVar[int] = KIND
    dtype: str = "bfloat16"

    def _check(self) -> None:
        check_choice(self, "dtype", self.dtype, _DTYPES)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        rounded, largest = self._rounded(numbers)
        return _FORM.pack(list(_DTYPES).index(self.dtype), largest) + tensor_bytes(rounded)

    def _rounded(self, numbers: torch.Tensor) -> tuple[torch.Tensor, float]:
        largest = float(numbers.abs().max())
        return (numbers / (largest or 1.0)).to(_DTYPES[self.dtype]), largest

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return the sum of the squares of the rounding errors."""
        if not tensor.numel():
            return 0.0
        numbers = tensor.detach().to(working_dtype(tensor.dtype))
        rounded, largest = self._rounded(numbers)
        error = rounded.double() - numbers.double() / (largest or 1.0)
        return float(error.square().sum()) * largest * largest


@body_decoder(KIND)
def _decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    number, largest = reader.fields(_FORM)
    which = list(_DTYPES.values())[number]
    return bytes_tensor(reader.take(2 * n), which).to(dtype) * largest
