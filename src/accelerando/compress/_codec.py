"""Codec: the base class of everything that encodes a tensor as bytes and decodes it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from accelerando._validation import did_you_mean
from accelerando.compress import _payload
from accelerando.compress._payload import Buffer, Reader
from accelerando.exceptions import PayloadError

# Decodes a body: (reader, number of elements, dtype to compute in, shape) -> flat tensor.
BodyDecoder = Callable[[Reader, int, torch.dtype, Sequence[int]], torch.Tensor]
_DECODERS: dict[int, BodyDecoder] = {}

# Kinds of codecs that were removed. Their numbers are never used again.
REMOVED_KINDS = {8: "Atomo with a user-defined transform"}


def body_decoder(kind: int) -> Callable[[BodyDecoder], BodyDecoder]:
    """Register the function that decodes bodies of this kind."""

    def register(function: BodyDecoder) -> BodyDecoder:
        assert kind not in _DECODERS
        assert kind not in REMOVED_KINDS
        _DECODERS[kind] = function
        return function

    return register


@dataclass(frozen=True)
class Compressor:
    """Base class of the values of ``compression=``: a :class:`Codec`, or PowerSGD."""

    def __post_init__(self) -> None:
        # NumPy's numbers, as a search draws them, have no `bit_length` and overflow.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
        self._check()

    def _check(self) -> None:
        """Raise unless the settings are valid."""

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings.

        Examples
        --------
        >>> from accelerando.compress import QSGD
        >>> QSGD(bits=2).with_settings(bits=4)
        QSGD(bits=4, bucket=512, norm=inf, warmup_epochs=0)
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in sorted(set(changes) - set(known)):
            hint = did_you_mean(name, known)
            raise ValueError(
                f"{type(self).__name__} has no setting {name!r}. {hint + ' ' if hint else ''}Its "
                f"settings: {', '.join(known) or 'none'}."
            )
        return dataclasses.replace(self, **changes)


class Codec(Compressor, ABC):
    """A way to encode a gradient in fewer bytes. Holds settings only and is immutable.

    A codec implements ``_body`` and ``expected_error``; this class implements the rest. Every codec
    stores a tensor without loss, bit for bit, if the tensor is empty or not finite, or if its
    decoded values could overflow.

    Attributes
    ----------
    unbiased : bool
        True if the mean of the decoded tensor over the generator's draws is the tensor itself.
    joint : bool
        True if what a tensor gets depends on the other tensors of :meth:`encode_all`.
    kind : int
        The number of the body's format. Codecs may share one.
    """

    unbiased: ClassVar[bool]
    joint: ClassVar[bool] = False
    kind: ClassVar[int]

    def encode(self, tensor: torch.Tensor, generator: torch.Generator | None = None) -> bytes:
        """Return the tensor as bytes.

        Parameters
        ----------
        tensor : torch.Tensor
            A tensor of float32, float64, float16 or bfloat16, of any shape, on any device.
        generator : torch.Generator, optional
            The source of all randomness, on the CPU. PyTorch's default generator if not given.

        Returns
        -------
        bytes
            A payload that names its format and contains a checksum.
        """
        return self.encode_all([tensor], generator)[0]

    def encode_all(
        self, tensors: Sequence[torch.Tensor], generator: torch.Generator | None = None
    ) -> list[bytes]:
        """Return the payload of each of several tensors.

        Parameters
        ----------
        tensors : sequence of torch.Tensor
            As for :meth:`encode`.
        generator : torch.Generator, optional
            The source of all randomness.
        """
        dense = [_dense(tensor) for tensor in tensors]
        numbers = [one.to(_payload.working_dtype(one.dtype)).contiguous() for one in dense]
        coded = [n for n, one in enumerate(numbers) if _is_finite(one)]
        bodies: list[bytes | None] = [None] * len(dense)
        limits = [torch.finfo(dense[n].dtype).max for n in coded]
        found = self._bodies([numbers[n] for n in coded], limits, generator)
        for n, body in zip(coded, found, strict=True):
            bodies[n] = body
        return [self._sealed(*each) for each in zip(dense, bodies, strict=True)]

    def _sealed(self, dense: torch.Tensor, body: bytes | None) -> bytes:
        if body is None:
            raw = _payload.tensor_bytes(dense)
            return _payload.seal(self.kind, dense.dtype, dense.numel(), raw, raw=True)
        return _payload.seal(self.kind, dense.dtype, dense.numel(), body)

    def decode(self, payload: Buffer, shape: Sequence[int]) -> torch.Tensor:
        """Return the tensor that a payload of this kind contains, on the CPU.

        Parameters
        ----------
        payload : bytes, bytearray or memoryview
            The result of ``encode`` of a codec of the same kind, with any settings.
        shape : sequence of int
            The shape of the encoded tensor.

        Raises
        ------
        PayloadError
            If the payload is truncated, damaged, of another kind, or does not fit the shape.
        """
        return _decode(payload, shape, self.kind)

    def _bodies(
        self,
        numbers: Sequence[torch.Tensor],
        limits: Sequence[float],
        generator: torch.Generator | None,
    ) -> list[bytes | None]:
        """Encode several tensors, each as :meth:`_body` does."""
        pairs = zip(numbers, limits, strict=True)
        return [self._body(one, limit, generator) for one, limit in pairs]

    @abstractmethod
    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        """Encode finite numbers; return None if decoded values could exceed `limit`."""

    @abstractmethod
    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return the theoretical mean of ‖decoded − tensor‖² over the generator's draws."""


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _payload.DTYPES:
        kind = getattr(tensor, "dtype", type(tensor).__name__)
        raise TypeError(
            "The 'tensor' parameter of encode must be a tensor of float32, float64, float16 or "
            f"bfloat16. Got {kind} instead. Convert it with tensor.float()."
        )
    return (tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()).cpu()


def _is_finite(numbers: torch.Tensor) -> bool:
    """Return True if there are numbers and all are finite; their sum mostly shows it."""
    if not numbers.numel():
        return False
    return bool(torch.isfinite(numbers.sum()) or numbers.isfinite().all())


def decode(payload: Buffer, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor that a payload contains, whichever codec encoded it.

    Parameters
    ----------
    payload : bytes, bytearray or memoryview
        The result of ``encode`` of any codec.
    shape : sequence of int
        The shape of the encoded tensor.

    Raises
    ------
    PayloadError
        If the payload is truncated or damaged, or does not fit the shape.

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import TernGrad, decode
    >>> decode(TernGrad().encode(torch.tensor([2.0, 0.0, -2.0])), (3,))
    tensor([ 2.,  0., -2.])
    """
    return _decode(payload, shape, None)


def _decode(payload: Buffer, shape: Sequence[int], kind: int | None) -> torch.Tensor:
    content = _payload.unseal(payload)
    if kind is not None and content.kind != kind:
        raise PayloadError(
            f"The payload is of kind {content.kind}, and this codec decodes kind {kind}. Decode it "
            "with the codec that encoded it, or with accelerando.compress.decode."
        )
    if content.numel != _payload.numel_of(shape):
        raise PayloadError(
            f"The payload contains {content.numel} numbers, and shape {tuple(shape)} has "
            f"{_payload.numel_of(shape)}."
        )
    reader = Reader(content.body)
    if content.raw:
        flat = _payload.bytes_tensor(reader.take(len(content.body)), content.dtype)
        if flat.numel() != content.numel:
            raise PayloadError("The payload's body and its header differ in the number of numbers.")
        return flat.reshape(tuple(shape))
    try:
        flat = _body_decoder(content.kind)(
            reader, content.numel, _payload.working_dtype(content.dtype), shape
        )
        reader.end()
    except (ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, PayloadError):
            raise
        # The checksum is right, so the body was not damaged but forged.
        raise PayloadError(f"The payload's body is not valid: {error}.") from error
    return flat.reshape(tuple(shape)).to(content.dtype)


def _body_decoder(kind: int) -> BodyDecoder:
    if kind in REMOVED_KINDS:
        raise PayloadError(
            f"The payload was encoded by {REMOVED_KINDS[kind]}, which was removed from "
            "accelerando. Decode it with the version that encoded it."
        )
    if kind not in _DECODERS:
        raise PayloadError(
            f"The payload is of kind {kind}, which this version of accelerando does not know. "
            "Decode it with the version that encoded it."
        )
    return _DECODERS[kind]
