r"""Atomo with one byte budget for all layers: which atoms of which layer are sent.

Every layer is a sum of atoms, singular vectors or entries. An atom of weight λ that takes c bytes
is sent with probability p, so that it adds λ²/p to the variance and p c to the expected bytes. The
probabilities :math:`p = \min(1, t λ / \sqrt c)`, with one factor t for all atoms of all layers,
have the least variance for the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from accelerando.compress import _entries, _rounding
from accelerando.compress._codec import body_decoder
from accelerando.compress._draws import drawn
from accelerando.compress._matrix import decompose, unfolded_shape
from accelerando.compress._payload import Reader
from accelerando.compress._probabilities import atom_probabilities

KIND = 10
LEVELS = 7  # above zero: with the sign, a number of a singular vector takes four bits
_SCALE_BYTES = 4
_VALUE_BYTES = 4  # in addition, of an entry with probability 1
_HALVINGS = 12  # of the bytes for probabilities
_LOOKED_AT = 4096  # atoms of a layer, when it chooses
_SVD, _ENTRIES = 0, 1


class Layer(NamedTuple):
    """The atoms of a layer, of one sort.

    Attributes
    ----------
    sort : int
        Singular vectors or entries.
    weights : Tensor
        λ, of which the variance of rounding singular vectors is a part.
    costs : Tensor
        Bytes of each atom.
    square : float
        Squared norm of the layer.
    left, right : Tensor
        Columns whose products are the atoms; entries have the layer itself as `left`.
    """

    sort: int
    weights: torch.Tensor
    costs: torch.Tensor
    square: float
    left: torch.Tensor
    right: torch.Tensor


def bodies(
    numbers: Sequence[torch.Tensor],
    limits: Sequence[float],
    generator: torch.Generator | None,
    *,
    share: float,
    sorts: Sequence[str],
    exact: bool | None,
) -> list[bytes | None]:
    """Encode layers within `share` of their bytes as float32.

    Parameters
    ----------
    numbers : sequence of Tensor
        The layers.
    limits : sequence of float
        The largest number that each may decode to; a layer that could exceed it gives None.
    generator : torch.Generator or None
        The source of randomness.
    share : float
        The expected bytes, relative to those of float32.
    sorts : sequence of "svd" or "entries"
        What layers may choose from.
    exact : bool or None
        How to find singular vectors.
    """
    layers, chances = allotted(numbers, share=share, sorts=sorts, exact=exact)
    kept = drawn(torch.cat(chances) if chances else torch.zeros(0), generator)
    found, start = [], 0
    for layer, chance, one, limit in zip(layers, chances, numbers, limits, strict=True):
        inside = kept[(kept >= start) & (kept < start + len(chance))] - start
        found.append(_body(layer, chance, inside, one, limit, generator))
        start += len(chance)
    return found


def expected_error(
    numbers: torch.Tensor, *, share: float, sorts: Sequence[str], exact: bool | None
) -> float:
    """Return the theoretical mean of ‖decoded − tensor‖² if a layer is encoded alone."""
    largest = float(numbers.abs().max())
    (layer,), (chance,) = allotted([numbers / largest], share=share, sorts=sorts, exact=exact)
    return largest * largest * (_variance(layer, chance) - layer.square)


def allotted(
    numbers: Sequence[torch.Tensor], *, share: float, sorts: Sequence[str], exact: bool | None
) -> tuple[list[Layer], list[torch.Tensor]]:
    """Return the atoms of each layer and their probabilities.

    All layers begin with the first sort. Then each chooses the sort with the least variance plus
    price of its bytes. The choice stands if it reduces the variance of all layers together.
    """
    budget = share * 4 * sum(one.numel() for one in numbers)
    offers = [[_layer(one, sort, share, exact) for sort in sorts] for one in numbers]
    layers = [offer[0] for offer in offers]
    chances = _chances(layers, budget)
    price = _price(layers, chances)
    if len(sorts) > 1 and price:
        chosen = [min(offer, key=lambda one: _lagrangian(one, price)) for offer in offers]
        if any(one.sort != layers[0].sort for one in chosen):
            others = _chances(chosen, budget)
            if _total(chosen, others) < _total(layers, chances):
                return chosen, others
    return layers, chances


# -- atoms of a layer -----------------------------------------------------------------------------


def _layer(numbers: torch.Tensor, sort: str, share: float, exact: bool | None) -> Layer:
    square = float(numbers.double().square().sum())
    if sort == "entries":
        flat = numbers.reshape(-1)
        # A sign, and a position in an Elias-Fano code, if a share 4s of the entries is sent.
        n_bytes = (3 + max(0.0, -math.log2(4 * share))) / 8
        costs = torch.full(flat.shape, n_bytes, dtype=torch.float64)
        return Layer(_ENTRIES, flat.abs().double(), costs, square, flat, flat[:0])
    rows, columns = unfolded_shape(numbers.shape)
    cost = (rows + columns) / 2 + 2 * _SCALE_BYTES
    largest = float(numbers.abs().max()) or 1.0
    matrix = (numbers / largest).reshape(rows, columns)
    rank = math.ceil(2 * share * 4 * numbers.numel() / cost)
    left, right = decompose(matrix, max(rank, 1), exact=exact)
    norms = torch.linalg.vector_norm(left, dim=0)
    left = left / torch.where(norms > 0, norms, 1.0)
    rounding = (1 + _rounding_variance(left)) * (1 + _rounding_variance(right))
    weights = largest * norms.double() * rounding.sqrt()
    costs = torch.full(weights.shape, cost, dtype=torch.float64)
    return Layer(_SVD, weights, costs, square, left * (norms * largest), right)


def _rounding_variance(columns: torch.Tensor) -> torch.Tensor:
    """Return E‖rounded − column‖² of each column of norm one."""
    width = columns.abs().amax(dim=0).double() / LEVELS
    steps = columns.double().abs() / torch.where(width > 0, width, 1.0)
    fraction = steps - steps.floor()
    return width**2 * (fraction * (1 - fraction)).sum(dim=0)


# -- probabilities --------------------------------------------------------------------------------


def _chances(layers: Sequence[Layer], budget: float) -> list[torch.Tensor]:
    """Return the probabilities of least variance for `budget` bytes, values included."""
    if not layers:
        return []
    weights = torch.cat([layer.weights for layer in layers])
    weights /= weights.max().clamp(min=torch.finfo(weights.dtype).tiny)
    costs = torch.cat([layer.costs for layer in layers])
    lengths = [len(layer.weights) for layer in layers]

    def within(limit: float) -> list[torch.Tensor]:
        return list(torch.split(atom_probabilities(weights, limit, costs), lengths))

    found = within(budget)
    if _bytes(layers, found) <= budget:
        return found
    # The values of certain entries take bytes in addition: fewer are left for the probabilities.
    low, high = 0.0, budget
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = within(middle)
        low, high = (low, middle) if _bytes(layers, found) > budget else (middle, high)
    return within(low) if low else found


def _price(layers: Sequence[Layer], chances: Sequence[torch.Tensor]) -> float:
    """Return by how much the variance falls per byte: λ² / (p² c) of any atom with p < 1."""
    for layer, chance in zip(layers, chances, strict=True):
        uncertain = torch.nonzero((chance > 0) & (chance < 1)).reshape(-1)
        if len(uncertain):
            n = int(uncertain[0])
            return float((layer.weights[n] / chance[n]) ** 2 / layer.costs[n])
    return 0.0


def _lagrangian(layer: Layer, price: float) -> float:
    """Return the variance plus the price of the bytes, with the best probabilities for it.

    Of a layer with many atoms, a part is looked at.
    """
    step = max(1, len(layer.weights) // _LOOKED_AT)
    part = layer._replace(weights=layer.weights[::step], costs=layer.costs[::step])
    chances = (part.weights / (price * part.costs).sqrt()).clamp(max=1.0)
    return step * (_variance(part, chances) + price * _bytes([part], [chances]))


def _bytes(layers: Sequence[Layer], chances: Sequence[torch.Tensor]) -> float:
    """Return the expected bytes of the atoms, and of the values of certain entries."""
    total = 0.0
    for layer, chance in zip(layers, chances, strict=True):
        total += float((chance * layer.costs).sum())
        if layer.sort == _ENTRIES:
            total += _VALUE_BYTES * int((chance == 1).sum())
    return total


def _total(layers: Sequence[Layer], chances: Sequence[torch.Tensor]) -> float:
    """Return the variance of all layers."""
    return sum(_variance(*pair) for pair in zip(layers, chances, strict=True))


def _variance(layer: Layer, chances: torch.Tensor) -> float:
    possible = chances > 0
    return float((layer.weights[possible].square() / chances[possible].double()).sum())


# -- bodies ---------------------------------------------------------------------------------------


def _body(
    layer: Layer,
    chances: torch.Tensor,
    kept: torch.Tensor,
    numbers: torch.Tensor,
    limit: float,
    generator: torch.Generator | None,
) -> bytes | None:
    if layer.sort == _ENTRIES:
        body = _entries.encode(layer.left, chances.to(numbers.dtype), kept, limit)
        return None if body is None else bytes([_ENTRIES]) + body
    head = bytes([_SVD]) + _entries.COUNT.pack(len(kept))
    if not len(kept):
        return head
    left = (layer.left[:, kept] / chances[kept].to(numbers.dtype)).T.contiguous()
    right = layer.right[:, kept].T.contiguous()
    # The largest decoded number; rounding never exceeds the largest entry of a vector.
    largest = (left.abs().amax(dim=1) * right.abs().amax(dim=1)).sum()
    if not float(largest) <= limit:
        return None
    parts = [head]
    for one in (left, right):
        part = _rounding.encode(one, limit, generator, LEVELS, math.inf, one.shape[1])
        if part is None:
            return None
        parts.append(part)
    return b"".join(parts)


@body_decoder(KIND)
def _decode(reader: Reader, n: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    sort = reader.take(1)[0]
    if sort == _ENTRIES:
        return _entries.decode(reader, n, dtype, shape)
    if sort != _SVD:
        raise ValueError(f"there are no atoms of sort {sort}")
    (count,) = reader.fields(_entries.COUNT)
    if not count:
        return torch.zeros(n, dtype=dtype)
    rows, columns = unfolded_shape(shape)
    if count > rows + columns:
        raise ValueError(f"{count} atoms of a matrix of {rows} times {columns}")
    left = _rounding.decode(reader, count * rows, dtype, ()).view(count, rows)
    right = _rounding.decode(reader, count * columns, dtype, ()).view(count, columns)
    return (left.T @ right).reshape(-1)
