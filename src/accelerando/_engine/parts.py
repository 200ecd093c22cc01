"""Some rows and their parts: what a model computes for each, and how far both are apart.

A trial changes nothing (:mod:`accelerando._engine.snapshot`), and random numbers are constants in
it, so that a batch and its parts get the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from accelerando._engine._torch import ConstantRandomness
from accelerando._engine.data.feed import leaves, map_leaves, only_tensors, slice_rows
from accelerando._engine.micro_batch import mass, share_of
from accelerando._engine.snapshot import Reset, memories, to_double
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.model import Model


Where = Literal["module", "loss", "buffers", "padding", "hook"]


class Rows(NamedTuple):
    """Some rows, and the same rows in parts."""

    X: Any
    y: Any
    parts: Sequence[tuple[Any, Any, int]]

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.parts)

    def in_double_precision(self) -> Rows:
        """Return the same rows with floating tensors in double precision."""
        X, y, *parts = (
            map_leaves(to_double, tree) for tree in (self.X, self.y, *(p[:2] for p in self.parts))
        )
        sizes = [rows for _, _, rows in self.parts]
        return Rows(X, y, [(*part, rows) for part, rows in zip(parts, sizes, strict=True)])


def cut_rows(tree: Any, cuts: Sequence[int]) -> list[tuple[Any, Any, int]]:
    """Return the parts of a pair of trees, and their numbers of rows."""
    return [(*slice_rows(tree, start, stop), stop - start) for start, stop in pairwise(cuts)]


class Found(NamedTuple):
    """What some rows yield."""

    y_pred: Any
    loss: torch.Tensor
    gradient: list[torch.Tensor]
    buffers: list[torch.Tensor]


class RaisesError(Exception):
    """The module or the loss raises an error for some rows."""

    def __init__(self, where: Where) -> None:
        self.where = where


def _begin(reset: Reset | None) -> None:
    if reset is not None:
        reset()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def evaluate(model: Model, X: Any, y: Any, reset: Reset | None) -> Found:
    """Compute predictions, loss and gradient; without `reset`, after the trials before."""
    _begin(reset)
    with torch.enable_grad(), ConstantRandomness():  # type: ignore[no-untyped-call]
        try:
            y_pred = model.forward(X, model.module)
        except Exception as error:
            raise RaisesError("module") from error
        try:
            loss = model.loss(y_pred, y, X)
            if loss.dim():
                raise UnsupportedError("no single number")
            found = torch.autograd.grad(loss, model.parameters, allow_unused=True)
        except Exception as error:
            raise RaisesError("loss") from error
    gradient = [
        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for p, g in zip(model.parameters, found, strict=True)
    ]
    detached = map_leaves(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, y_pred)
    return Found(detached, loss.detach(), gradient, [b.clone() for b in memories(model)])


def loss_of(model: Model, X: Any, y: Any, y_pred: Any, reset: Reset) -> float:
    """Return the loss of predictions as a number."""
    return float(evaluate_loss(model, X, y, y_pred, reset).detach())


def evaluate_loss(model: Model, X: Any, y: Any, y_pred: Any, reset: Reset) -> torch.Tensor:
    """Return the loss of predictions."""
    _begin(reset)
    try:
        with torch.enable_grad(), ConstantRandomness():  # type: ignore[no-untyped-call]
            return model.loss(y_pred, y, X)
    except Exception as error:
        raise RaisesError("loss") from error


def norm(tensors: Sequence[torch.Tensor]) -> float:
    """Return the Euclidean norm of all tensors together."""
    return float(torch.stack([t.double().norm() for t in tensors]).norm()) if tensors else 0.0


def differ(first: Sequence[Any], second: Sequence[Any], single: float = 1e-3) -> bool:
    """Return True if tensors differ by more than rounding, which is coarse in single precision."""
    for one, other in zip(first, second, strict=True):
        if not isinstance(one, torch.Tensor):
            continue
        if one.shape != other.shape:
            return True
        a, b = one.double(), other.double()
        tolerance = 1e-9 if one.dtype == torch.float64 else single
        if float((a - b).abs().amax() if a.numel() else 0.0) > tolerance * (
            1e-30 + float(a.abs().amax() if a.numel() else 0.0)
        ):
            return True
    return False


# -- losses of other predictions -------------------------------------------------------------------


def try_losses(model: Model, batch: Rows, y_pred: Any, sums: bool, reset: Reset) -> float:
    """Return how far losses of parts are from that of the whole, for other orders and predictions.

    Rows in the order of their targets have other classes in one part than in the other: this finds
    losses that divide by the weights of the classes, or by the targets that count. Predictions
    that are better in one part and worse in the other find losses that bend the loss of the batch,
    such as flooding and clamping.
    """
    tree = [batch.X, batch.y, y_pred]
    if not only_tensors(tree) or {len(leaf) for leaf in leaves(tree)} != {batch.rows}:
        return 0.0
    cut = batch.parts[0][2]
    worst = 0.0
    for X, y, p, exact in _other_rows(model, batch, y_pred, cut, reset):
        total = mass(model.criterion, y, batch.rows)
        try:
            whole = loss_of(model, X, y, p, reset)
            if not np.isfinite(whole):
                continue
            parts = cut_rows([X, [y, p]], [0, cut, batch.rows])
            shares = [
                1.0 if sums else share_of(model.criterion, some[0], rows, total)
                for _, some, rows in parts
            ]
            if 0.0 in shares:
                continue
        except RaisesError:
            continue  # predictions that the module does not make
        try:
            losses = [
                share * loss_of(model, some_X, some[0], some[1], reset)
                for share, (some_X, some, _) in zip(shares, parts, strict=True)
            ]
        except RaisesError:
            losses = [np.nan]
        if not np.isfinite(losses).all():
            worst = np.inf if exact else worst
            continue
        scale = abs(whole) + sum(map(abs, losses))
        worst = max(worst, abs(whole - sum(losses)) / max(scale, 1e-300))
    return worst


def _other_rows(
    model: Model, batch: Rows, y_pred: Any, cut: int, reset: Reset
) -> Iterator[tuple[Any, Any, Any, bool]]:
    """Yield rows with other predictions; the last value says that the module makes them."""
    X, y = batch.X, batch.y
    key = leaves(y)[0].double().flatten(1).mean(1) if leaves(y)[0].dim() > 1 else leaves(y)[0]
    order = key.argsort(stable=True)
    yield (*map_leaves(lambda leaf: leaf.index_select(0, order), [X, y, y_pred]), True)
    outputs = [leaf for leaf in leaves(y_pred) if leaf.is_floating_point()]
    if not outputs:
        return
    try:
        steps = _directions(model, X, y, y_pred, reset)
    except RaisesError:
        return
    for low in _STEPS:  # one of them is below the value where the loss bends, if it bends
        sizes = [-low] * cut + [_STEPS[-1]] * (len(outputs[0]) - cut)
        yield X, y, _moved(y_pred, steps, sizes), False


_STEPS = (0.1, 0.5, 2.0, 8.0)  # as multiples of the largest element of a row's gradient


def _directions(model: Model, X: Any, y: Any, y_pred: Any, reset: Reset) -> list[torch.Tensor]:
    """Return for each output the direction in which the loss of each row grows."""
    free = map_leaves(
        lambda leaf: leaf.clone().requires_grad_() if leaf.is_floating_point() else leaf, y_pred
    )
    inputs = [leaf for leaf in leaves(free) if leaf.is_floating_point()]
    loss = evaluate_loss(model, X, y, free, reset)
    if not loss.requires_grad:
        return [torch.zeros_like(leaf) for leaf in inputs]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    steps = []
    for leaf, gradient in zip(inputs, found, strict=True):
        step = torch.zeros_like(leaf) if gradient is None else gradient.detach()
        largest = step.abs().reshape(len(step), -1).amax(1).clamp(min=1e-300)
        steps.append(step / largest.view(-1, *[1] * (step.dim() - 1)))
    return steps


def _moved(y_pred: Any, steps: list[torch.Tensor], sizes: Sequence[float]) -> Any:
    remaining = iter(steps)

    def move(leaf: torch.Tensor) -> torch.Tensor:
        if not leaf.is_floating_point():
            return leaf
        size = torch.tensor(sizes, dtype=leaf.dtype, device=leaf.device)
        return leaf + size.view(-1, *[1] * (leaf.dim() - 1)) * next(remaining)

    return map_leaves(move, y_pred)
