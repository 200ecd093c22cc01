"""What a codec is: a tensor in, bytes out, and back."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from accelerando.compress import _payload
from accelerando.compress._payload import Buffer, Reader
from accelerando.exceptions import PayloadError

# Reads a body: (reader, number of elements, number type to compute in, shape) -> flat tensor.
BodyDecoder = Callable[[Reader, int, torch.dtype, Sequence[int]], torch.Tensor]
_DECODERS: dict[int, BodyDecoder] = {}


def body_decoder(kind: int) -> Callable[[BodyDecoder], BodyDecoder]:
    """Register the function that reads bodies of this kind."""

    def register(function: BodyDecoder) -> BodyDecoder:
        assert kind not in _DECODERS
        _DECODERS[kind] = function
        return function

    return register


@dataclass(frozen=True)
class Compressor:
    """What ``compression=`` takes: a :class:`Codec`, or a method of exchange such as PowerSGD."""

    def with_settings(self, **changes: Any) -> Self:
        """Return the same compressor with other settings.

        Examples
        --------
        >>> from accelerando.compress import QSGD
        >>> QSGD(bits=2).with_settings(bits=4)
        QSGD(bits=4, bucket=512, norm=2.0, coding='packed')
        """
        known = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no setting {', '.join(unknown)}. Its settings: "
                f"{', '.join(known) or 'none'}."
            )
        return dataclasses.replace(self, **changes)


class Codec(Compressor, ABC):
    """A way to write a gradient in fewer bytes; holds settings only and never changes.

    A codec implements ``_body`` and ``expected_error``; everything around them is here. A tensor
    that is not finite, that is empty, or whose decoded values might overflow is written as it is,
    bit for bit, by every codec: nothing turns silently into something else.

    Attributes
    ----------
    unbiased : bool
        Whether the mean of what is decoded is the tensor itself, over the generator's draws.
    kind : int
        The number of the body's format; codecs may share one.
    """

    unbiased: ClassVar[bool]
    kind: ClassVar[int]

    def encode(self, tensor: torch.Tensor, generator: torch.Generator | None = None) -> bytes:
        """Return the tensor as bytes.

        Parameters
        ----------
        tensor : torch.Tensor
            Of float32, float64, float16 or bfloat16 numbers, of any shape, on any device.
        generator : torch.Generator, optional
            Source of all randomness, on the CPU; by default PyTorch's own.

        Returns
        -------
        bytes
            A payload that says which format it has, guarded by a checksum.
        """
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _payload.DTYPES:
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise TypeError(
                "tensor must hold float32, float64, float16 or bfloat16 numbers. Got "
                f"{kind}; convert it with tensor.float()."
            )
        dense = (tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()).cpu()
        numbers = dense.to(_payload.working_dtype(tensor.dtype))
        body = None
        if numbers.numel() and bool(torch.isfinite(numbers.sum()) or numbers.isfinite().all()):
            limit = torch.finfo(tensor.dtype).max
            body = self._body(numbers.contiguous(), limit, generator)
        if body is None:
            raw = _payload.tensor_bytes(dense)
            return _payload.seal(self.kind, tensor.dtype, dense.numel(), raw, raw=True)
        return _payload.seal(self.kind, tensor.dtype, dense.numel(), body)

    def decode(self, payload: Buffer, shape: Sequence[int]) -> torch.Tensor:
        """Return the tensor that a payload of this kind stands for, on the CPU.

        Parameters
        ----------
        payload : bytes, bytearray or memoryview
            From ``encode`` of a codec of the same kind, whatever its settings.
        shape : sequence of int
            Of the encoded tensor.

        Raises
        ------
        PayloadError
            If the payload is cut, damaged, of another kind, or does not fit the shape.
        """
        return _decode(payload, shape, self.kind, self._decoder())

    @abstractmethod
    def _body(
        self, numbers: torch.Tensor, limit: float, generator: torch.Generator | None
    ) -> bytes | None:
        """Write finite numbers; None if what is decoded might exceed `limit`."""

    @abstractmethod
    def expected_error(self, tensor: torch.Tensor) -> float:
        """Return the mean of ‖decoded − tensor‖² over the generator's draws, by theory."""

    def _decoder(self) -> BodyDecoder:
        return _DECODERS[self.kind]


def decode(payload: Buffer, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor that any payload stands for, whichever codec wrote it.

    Parameters
    ----------
    payload : bytes, bytearray or memoryview
        From any codec but an ``Atomo`` with a transform of one's own.
    shape : sequence of int
        Of the encoded tensor.

    Raises
    ------
    PayloadError
        If the payload is cut or damaged, or does not fit the shape.

    Examples
    --------
    >>> import torch
    >>> from accelerando.compress import TernGrad, decode
    >>> decode(TernGrad().encode(torch.tensor([2.0, 0.0, -2.0])), (3,))
    tensor([ 2.,  0., -2.])
    """
    return _decode(payload, shape, None, None)


def _decode(
    payload: Buffer, shape: Sequence[int], kind: int | None, read: BodyDecoder | None
) -> torch.Tensor:
    content = _payload.unseal(payload)
    if kind is not None and content.kind != kind:
        raise PayloadError(
            f"The payload is of kind {content.kind}, and this codec reads kind {kind}. Decode with "
            "the codec that encoded, or with accelerando.compress.decode."
        )
    if content.numel != _payload.numel_of(shape):
        raise PayloadError(
            f"The payload holds {content.numel} numbers, and shape {tuple(shape)} has "
            f"{_payload.numel_of(shape)}."
        )
    reader = Reader(content.body)
    if content.raw:
        flat = _payload.bytes_tensor(reader.take(len(content.body)), content.dtype)
        if flat.numel() != content.numel:
            raise PayloadError("The payload's body does not hold as many numbers as announced.")
        return flat.reshape(tuple(shape))
    read = read or _DECODERS.get(content.kind)
    if read is None:
        raise PayloadError(
            f"Nothing here reads payloads of kind {content.kind}. One of a transform of your own "
            "is decoded by the Atomo that has the transform."
        )
    try:
        flat = read(reader, content.numel, _payload.working_dtype(content.dtype), shape)
        reader.end()
    except (ValueError, IndexError, RuntimeError) as error:
        # The checksum was right, so that somebody has written a wrong body on purpose.
        raise PayloadError(f"The payload's body makes no sense: {error}") from error
    return flat.reshape(tuple(shape)).to(content.dtype)
