"""Error feedback: what one payload leaves out is added to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from accelerando._validation import parameter_error
from accelerando.compress._codec import Codec, Compressor
from accelerando.compress._payload import Buffer

_ALLOWED = "a codec of accelerando.compress, such as TopK(0.01)"


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """Add to each gradient the error of the payloads before it.

    With the memory e, initially zero, an update sends C(g + e) and keeps e ← g + e − C(g + e). It
    is meant for codecs that are biased and never increase the norm, such as :class:`TopK`.

    An unbiased codec is damped: it encodes (g + e) / (1 + ω), where ω is its expected error
    relative to ‖g + e‖². Without this factor the memory would grow without bound if ω is above 1;
    with it, the codec leaves out at most the share ω / (1 + ω) of the square (Horváth et al. 2023).

    This object holds settings only. The memory belongs to the caller: each rank of a cluster has
    one for every parameter that is compressed. When a rank is lost, its memory is lost: the part of
    a few past gradients that it had not sent. A rank that joins starts without a memory. The
    memories are not part of a saved state. Optimizers that evaluate several gradients in an update,
    such as L-BFGS, are refused: they compare gradients, and the memory would distort the
    comparison.

    Parameters
    ----------
    codec : Codec
        The codec that encodes.

    References
    ----------
    Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes (2019);
    Stich et al., Sparsified SGD with memory (2018); Horváth et al., Stochastic distributed learning
    with gradient quantization and double-variance reduction (2023).

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import ErrorFeedback, TopK
    >>> feedback = ErrorFeedback(TopK(fraction=0.5))
    >>> payload, memory = feedback.encode_with(torch.tensor([2.0, 1.0]), None)
    >>> feedback.decode(payload, (2,)), memory
    (tensor([2., 0.]), tensor([0., 1.]))
    >>> payload, memory = feedback.encode_with(torch.tensor([0.0, 1.0]), memory)
    >>> feedback.decode(payload, (2,)), memory
    (tensor([0., 2.]), tensor([0., 0.]))
    """

    unbiased: ClassVar[bool] = False
    codec: Codec

    def _check(self) -> None:
        if not isinstance(self.codec, Codec):
            raise TypeError(str(parameter_error(self, "codec", _ALLOWED, self.codec)))

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings of the codec, or with another ``codec``."""
        if "codec" in changes:
            return super().with_settings(**changes)
        return type(self)(self.codec.with_settings(**changes))

    def encode(self, tensor: torch.Tensor, generator: torch.Generator | None = None) -> bytes:
        """Encode without a memory, as in the first update."""
        return self.codec.encode(tensor, generator)

    def encode_with(
        self,
        tensor: torch.Tensor,
        memory: torch.Tensor | None,
        generator: torch.Generator | None = None,
    ) -> tuple[bytes, torch.Tensor | None]:
        """Encode the sum of tensor and memory; return the payload and the new memory.

        Parameters
        ----------
        tensor : torch.Tensor
            The gradient.
        memory : torch.Tensor or None
            The memory that the previous call returned; None in the first update.
        generator : torch.Generator, optional
            The codec's source of randomness.
        """
        total = tensor if memory is None else tensor + memory.to(tensor)
        payload = self.codec.encode(self._damped(total), generator)
        error = total - self.codec.decode(payload, tuple(total.shape)).to(total.device)
        # A gradient that is not finite stops the training; it must not stay in the memory.
        return payload, error if bool(error.isfinite().all()) else memory

    def _damped(self, total: torch.Tensor) -> torch.Tensor:
        """Divide what an unbiased codec encodes by 1 + ω."""
        if not self.codec.unbiased:
            return total
        error = self.codec.expected_error(total)
        square = float(total.double().square().sum())
        # Not finite: it is sent as it is, and ends the training.
        return total * (square / (square + error)) if 0.0 < error < math.inf else total

    def decode(self, payload: Buffer, shape: Sequence[int]) -> torch.Tensor:
        """Decode a payload of the codec."""
        return self.codec.decode(payload, shape)
