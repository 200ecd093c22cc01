"""One bit for each entry: its sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from accelerando.compress._codec import Codec, body_decoder
from accelerando.compress._payload import Reader, stored, working_dtype

KIND = 4


@dataclass(frozen=True)
class SignSGD(Codec):
    r"""Each entry becomes ± the mean of the absolute values. Biased: use :class:`ErrorFeedback`.

    .. math:: ĝ = \frac{‖g‖_1}{n} \operatorname{sign}(g)

    References
    ----------
    Bernstein et al., signSGD (2018); Karimireddy et al., Error feedback fixes SignSGD and other
    gradient compression schemes (2019).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import SignSGD
    >>> SignSGD().decode(SignSGD().encode(torch.tensor([1.0, -3.0, 2.0])), (3,))
    tensor([ 2., -2.,  2.])
    """

    unbiased: ClassVar[bool] = False
    kind: ClassVar[int] = KIND

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        flat = numbers.reshape(-1)
        # The sum may overflow where the mean does not: float64 has room for any float32's.
        scale = flat.abs().sum(dtype=torch.float64) / flat.numel()
        if not float(scale) <= limit:
            return None
        stamp = np.array([float(scale)], dtype=stored(flat.dtype)).tobytes()
        return stamp + np.packbits(flat.numpy() < 0, bitorder="little").tobytes()

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return ‖g‖² − ‖g‖₁²/n, what is lost each time."""
        flat = tensor.detach().reshape(-1).to(working_dtype(tensor.dtype)).double()
        if not flat.numel():
            return 0.0
        return float((flat.abs() - flat.abs().mean()).square().sum())


@body_decoder(KIND)
def _decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    scale = float(reader.array(stored(dtype), 1)[0])
    signs = np.unpackbits(reader.array("u1", -(-n // 8)), count=n, bitorder="little")
    return torch.from_numpy(signs).to(dtype).mul_(-2.0).add_(1.0).mul_(scale)
