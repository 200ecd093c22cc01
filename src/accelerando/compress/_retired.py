"""Deprecated codecs: RandomK and SignSGD. They work for one version, then this file goes.

None of the papers that accelerando follows needs them, and no benchmark trains with them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from accelerando._validation import check_number
from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._payload import Reader, stored, working_dtype
from accelerando.compress._sparse import kept_entries

RANDOM_KIND, SIGN_KIND = 3, 4
_DRAW = struct.Struct("<QQI")  # number of entries, seed of the draw, checksum of the positions


@dataclass(frozen=True)
class RandomK(Codec):
    """Keep entries drawn at random (Konečný and Richtárik 2018), times n / k if `rescale`."""

    kind: ClassVar[int] = RANDOM_KIND
    fraction: float = 0.01
    rescale: bool = True

    def _check(self) -> None:
        check_number(self, "fraction", self.fraction, above=0, maximum=1)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """True if the mean of the decoded tensor is the tensor."""
        return self.rescale or self.fraction == 1

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        flat = numbers.reshape(-1)
        n = flat.numel()
        factor = n / kept_entries(n, self.fraction) if self.rescale else 1.0
        if not float(flat.abs().max()) <= limit / factor:
            return None
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        positions = _draw(seed, kept_entries(n, self.fraction), n)
        kept = (flat[torch.from_numpy(positions)] * factor).numpy()
        head = _DRAW.pack(len(positions), seed, zlib.crc32(positions.tobytes()))
        return head + kept.astype(stored(flat.dtype), copy=False).tobytes()

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return (n/k − 1)‖g‖², or (1 − k/n)‖g‖² without rescaling."""
        n = tensor.numel()
        square = float(tensor.detach().double().square().sum())
        if not n:
            return 0.0
        share = kept_entries(n, self.fraction) / n
        return square * (1 / share - 1 if self.rescale else 1 - share)


@dataclass(frozen=True)
class SignSGD(Codec):
    """Each entry becomes ± the mean absolute value (Bernstein et al. 2018). Biased."""

    unbiased: ClassVar[bool] = False
    kind: ClassVar[int] = SIGN_KIND

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        flat = numbers.reshape(-1)
        # The sum may overflow where the mean does not; float64 has room for the sum of float32.
        scale = flat.abs().sum(dtype=torch.float64) / flat.numel()
        if not float(scale) <= limit:
            return None
        encoded = np.array([float(scale)], dtype=stored(flat.dtype)).tobytes()
        return encoded + np.packbits(flat.numpy() < 0, bitorder="little").tobytes()

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return ‖g‖² − ‖g‖₁²/n."""
        flat = tensor.detach().reshape(-1).to(working_dtype(tensor.dtype)).double()
        if not flat.numel():
            return 0.0
        return float((flat.abs() - flat.abs().mean()).square().sum())


@body_decoder(RANDOM_KIND)
def _decode_random(
    reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    count, seed, checksum = reader.fields(_DRAW)
    if count > n:
        raise ValueError(f"{count} entries of {n}")
    positions = _draw(seed, count, n)
    if zlib.crc32(positions.tobytes()) != checksum:
        raise ValueError("this version of NumPy draws other positions than the one that encoded")
    found = torch.zeros(n, dtype=dtype)
    found.numpy()[positions] = reader.array(stored(dtype), count)
    return found


@body_decoder(SIGN_KIND)
def _decode_sign(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    scale = float(reader.array(stored(dtype), 1)[0])
    signs = np.unpackbits(reader.array("u1", -(-n // 8)), count=n, bitorder="little")
    return torch.from_numpy(signs).to(dtype).mul_(-2.0).add_(1.0).mul_(scale)


def _draw(seed: int, count: int, n: int) -> np.ndarray:
    draw = np.random.Generator(np.random.Philox(seed))
    chosen: np.ndarray = draw.choice(n, count, replace=False, shuffle=False)
    return chosen.astype("<i8", copy=False)
