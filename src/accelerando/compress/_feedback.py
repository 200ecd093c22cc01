"""What one payload leaves out goes into the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from accelerando.compress._codec import Codec, Compressor
from accelerando.compress._payload import Buffer


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """Add to each gradient what the payloads before it have left out.

    With the memory e, at first zero, an update sends C(g + e) and keeps e ← g + e − C(g + e). Made
    for codecs that are biased and never enlarge: :class:`TopK`, :class:`SignSGD`,
    ``RandomK(rescale=False)``.

    The settings are here and the memory is outside, with whoever encodes: each rank of a cluster
    has one for every parameter that is compressed. A rank that is lost takes its memory with it,
    that is the part of a few past gradients that it had not sent yet; a rank that joins begins
    with none. The memories are not part of a saved state. Optimizers that evaluate several
    gradients in an update, such as L-BFGS, are refused: they look at differences of gradients, in
    which the memory has no place.

    Parameters
    ----------
    codec : Codec
        What encodes. An unbiased one with a large variance makes the memory grow without bound.

    References
    ----------
    Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes (2019);
    Stich et al., Sparsified SGD with memory (2018).

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

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise TypeError(
                "codec of ErrorFeedback must be a codec of accelerando.compress, like TopK(0.01). "
                f"Got {self.codec!r}."
            )

    def with_settings(self, **changes: Any) -> Self:
        """Return the same with other settings of the codec inside, or another ``codec``."""
        if "codec" in changes:
            return super().with_settings(**changes)
        return type(self)(self.codec.with_settings(**changes))

    def encode(self, tensor: torch.Tensor, generator: torch.Generator | None = None) -> bytes:
        """Encode without a memory, as the first time."""
        return self.codec.encode(tensor, generator)

    def encode_with(
        self,
        tensor: torch.Tensor,
        memory: torch.Tensor | None,
        generator: torch.Generator | None = None,
    ) -> tuple[bytes, torch.Tensor | None]:
        """Encode the tensor and what is remembered; return the payload and the new memory.

        Parameters
        ----------
        tensor : torch.Tensor
            What is to be sent.
        memory : torch.Tensor or None
            What the call before returned; None the first time.
        generator : torch.Generator, optional
            Of the codec.
        """
        whole = tensor if memory is None else tensor + memory.to(tensor)
        payload = self.codec.encode(whole, generator)
        left = whole - self.codec.decode(payload, tuple(whole.shape)).to(whole.device)
        # A gradient that is not finite stops the training; it must not haunt what comes after.
        return payload, left if bool(left.isfinite().all()) else memory

    def decode(self, payload: Buffer, shape: Sequence[int]) -> torch.Tensor:
        """Decode as the codec inside does."""
        return self.codec.decode(payload, shape)
