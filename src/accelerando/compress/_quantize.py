"""Quantization: QSGD, TernGrad and ℓ_q-quantization round entries at random to a few levels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from accelerando._deprecation import warn_deprecated
from accelerando._validation import check, check_choice, check_integer, check_number, is_integer
from accelerando.compress import _rounding
from accelerando.compress._codec import Codec

_NO_BUCKETS = {None: "None (the entire tensor)"}
_LARGEST = {math.inf: "math.inf (the largest entry)"}


@dataclass(frozen=True)
class LqQuantize(Codec):
    """ℓ_q-quantization: each entry becomes 0 or ±‖g‖_q.

    An entry is kept with probability :math:`p_i = |g_i| / ‖g‖_q`. That is atomic sparsification
    with the optimal probabilities for :math:`‖g‖_1 / ‖g‖_q` atoms, and
    :math:`E‖ĝ‖² = ‖g‖_1 ‖g‖_q`. With q = 2 it is QSGD with one bit, with q = ∞ TernGrad. A byte
    holds five entries.

    Parameters
    ----------
    q : float, default=2.0
        The norm; at least 1. A larger one gives less noise and more nonzero entries.
    bucket : int or None, default=None
        The number of entries that share a norm. None: the entire tensor.

    References
    ----------
    Theorem 10 of the dissertation "Accelerating active machine learning" (S. Sievert); Wang et
    al., ATOMO: Communication-efficient learning via atomic sparsification (2018).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import LqQuantize
    >>> g = torch.tensor([3.0, 0.0, -4.0, 0.0])
    >>> payload = LqQuantize(q=2).encode(g, torch.Generator().manual_seed(1))
    >>> sorted(set(LqQuantize().decode(payload, (4,)).abs().tolist()))
    [0.0, 5.0]
    """

    unbiased: ClassVar[bool] = True
    kind: ClassVar[int] = _rounding.KIND
    q: float = 2.0
    bucket: int | None = None

    def _check(self) -> None:
        check_number(self, "q", self.q, minimum=1, also=_LARGEST)
        check_integer(self, "bucket", self.bucket, also=_NO_BUCKETS)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        return _rounding.encode(numbers, limit, generator, 1, self.q, self.bucket)

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return ‖g‖₁‖g‖_q − ‖g‖², summed over the buckets."""
        return _rounding.expected_error(tensor, 1, self.q, self.bucket)


@dataclass(frozen=True)
class TernGrad(Codec):
    """Each entry becomes 0 or ±max|g|: :class:`LqQuantize` with q = ∞.

    Parameters
    ----------
    bucket : int or None, default=None
        The number of entries that share a maximum. None: the entire tensor, as in the paper, which
        scales layer by layer.

    References
    ----------
    Wen et al., TernGrad: Ternary gradients to reduce communication in distributed deep learning
    (2017).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import TernGrad
    >>> len(TernGrad().encode(torch.randn(100_000)))  # of 400,000
    20042
    """

    unbiased: ClassVar[bool] = True
    kind: ClassVar[int] = _rounding.KIND
    bucket: int | None = None

    def _check(self) -> None:
        check_integer(self, "bucket", self.bucket, also=_NO_BUCKETS)

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        return _rounding.encode(numbers, limit, generator, 1, math.inf, self.bucket)

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return ‖g‖₁ max|g| − ‖g‖², summed over the buckets."""
        return _rounding.expected_error(tensor, 1, math.inf, self.bucket)


@dataclass(frozen=True)
class QSGD(Codec):
    r"""Random rounding to 2^bits − 1 levels and a sign.

    An entry takes bits + 1 bits, or 1.6 bits if `bits` is 1. The scale of every bucket is a
    float32.

    Parameters
    ----------
    bits : int, default=4
        The bits of the level, without the sign; 1 to 8.
    bucket : int or None, default=512
        The number of entries that share a scale. None: the entire tensor, as in the paper's
        analysis.
    norm : float, default=math.inf
        The norm of a bucket that is its scale: ``math.inf``, the largest entry, which most
        implementations use, or 2.0 as in the paper. At equal bytes, the largest entry gives the
        smaller variance: 0.009 against 0.35 of the squared norm with four bits and 512 normal
        entries.
    warmup_epochs : float, default=0
        Epochs in which tensors are sent as they are, because gradients change most at the
        beginning; 0.5 is half of the first epoch.
    coding : str, default="packed"
        Deprecated. Levels are always packed; Elias' γ code was removed.

    References
    ----------
    Alistarh et al., QSGD: Communication-efficient SGD via gradient quantization and encoding
    (2017).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import QSGD
    >>> g = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    >>> codec = QSGD(bits=8)
    >>> decoded = codec.decode(codec.encode(g, torch.Generator().manual_seed(1)), g.shape)
    >>> bool((decoded - g).abs().max() < 0.1), len(codec.encode(g))
    (True, 1171)
    """

    unbiased: ClassVar[bool] = True
    kind: ClassVar[int] = _rounding.KIND
    bits: int = 4
    bucket: int | None = 512
    norm: float = math.inf
    warmup_epochs: float = 0
    coding: str = field(default="packed", repr=False)

    def _check(self) -> None:
        bits = self.bits
        check(is_integer(bits, 1) and bits <= 8, self, "bits", "an integer from 1 to 8", bits)
        check_integer(self, "bucket", self.bucket, also=_NO_BUCKETS)
        check_number(self, "norm", self.norm, minimum=1, also=_LARGEST)
        check_number(self, "warmup_epochs", self.warmup_epochs, minimum=0)
        check_choice(self, "coding", self.coding, ("packed", "elias"))
        if self.coding == "elias":
            # Both codings store the same levels: decoded tensors are equal bit for bit.
            warn_deprecated(
                "QSGD(coding='elias')",
                "Leave out coding: levels are packed, and decoded values stay the same.",
                stacklevel=5,
            )
            object.__setattr__(self, "coding", "packed")

    @property
    def levels(self) -> int:
        """The number of levels above zero."""
        return (1 << self.bits) - 1

    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        return _rounding.encode(numbers, limit, generator, self.levels, self.norm, self.bucket)

    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return Σ (c/s)² f(1 − f), where f is the fraction that is rounded at random."""
        return _rounding.expected_error(tensor, self.levels, self.norm, self.bucket)
