"""Drawn entries of a tensor as bytes: their positions, and their values or signs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch

from accelerando.compress import _elias
from accelerando.compress._payload import Reader, stored

COUNT = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")  # entries with probability 1, entries that were drawn


def encode(
    values: torch.Tensor, probabilities: torch.Tensor, kept: torch.Tensor, limit: float
) -> bytes | None:
    """Encode the values of entries with probability 1, and the signs of the drawn entries.

    All entries that are drawn with pᵢ = |λᵢ|c have the same absolute value λᵢ/pᵢ = 1/c.
    """
    n = values.numel()
    if not float(values.abs().max()) <= limit:
        return None
    is_certain = probabilities[kept] == 1
    uncertain = torch.nonzero((probabilities < 1) & (probabilities > 0)).reshape(-1)
    common = 0.0
    if len(uncertain):
        heaviest = uncertain[values[uncertain].abs().argmax()]
        common = float(values[heaviest].abs().double() / probabilities[heaviest].double())
    if not common <= limit:
        return None
    certain, drawn = kept[is_certain].numpy(), kept[~is_certain].numpy()
    numbers = np.append(values.numpy()[certain], common).astype(stored(values.dtype))
    return b"".join(
        (
            _COUNTS.pack(len(certain), len(drawn)),
            numbers.tobytes(),
            _elias.encode_positions(certain, n),
            _elias.encode_positions(drawn, n),
            np.packbits(values.numpy()[drawn] < 0, bitorder="little").tobytes(),
        )
    )


def decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Decode a body that :func:`encode` returned."""
    certain, drawn = reader.fields(_COUNTS)
    if certain + drawn > n:
        raise ValueError(f"{certain + drawn} entries of {n}")
    numbers = reader.array(stored(dtype), certain + 1)
    found = torch.zeros(n, dtype=dtype)
    array = found.numpy()
    array[_elias.decode_positions(reader, certain, n)] = numbers[:-1]
    positions = _elias.decode_positions(reader, drawn, n)
    signs = np.unpackbits(reader.array("u1", -(-drawn // 8)), count=drawn, bitorder="little")
    array[positions] = np.where(signs, -numbers[-1], numbers[-1])
    return found
