"""Detection of coupled rows: a batch is compared with its parts before anything is divided.

Ranks and micro-batches add up the gradients of parts of a batch. That is the gradient of the batch
if its loss is a mean or a sum over rows, and it is not for a contrastive loss, for Dice, or for a
module that computes statistics over the rows. The only way to know is to try: the loss, the
gradient and the buffers of some rows are compared with those of two parts of them.

Nothing is changed by that: random numbers are constants meanwhile, BatchNorm (which ranks
synchronize) does not look at the rows, and buffers, attributes and generators are put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from accelerando._engine._torch import hooks_of
from accelerando._engine.data.feed import (
    concatenate,
    leaves,
    map_leaves,
    only_tensors,
    slice_rows,
)
from accelerando._engine.micro_batch import is_altered, mass, share_of
from accelerando._engine.trial import (
    Found,
    RaisesError,
    Reset,
    Where,
    evaluate,
    evaluate_loss,
    in_double_precision,
    loss_of,
    nothing_changes,
    to_double,
)

if TYPE_CHECKING:
    from accelerando._engine.model import Model


MOST_ROWS, FEWEST_ROWS = 256, 32
# A difference above the first number is looked at again in double precision; if that is not
# possible, one above the second number counts.
_SUSPICIOUS = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-6, 1e-2)}
_COARSE = (1e-1, 5e-1)

# Modules of these types treat each row by itself; others may do anything in `forward`.
# fmt: off
_BY_ROW = {
    nn.Sequential, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ReLU, nn.LeakyReLU, nn.ELU,
    nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity, nn.LayerNorm, nn.GroupNorm,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
}
# fmt: on
_FROM_DIMENSION = {nn.Flatten: "start_dim", nn.Softmax: "dim", nn.LogSoftmax: "dim"}  # 0: of rows


def rows_to_compare(model: Model) -> int:
    """Return how many rows to look at: fewer of a larger model."""
    parameters = sum(p.numel() for p in model.parameters)
    return max(FEWEST_ROWS, min(MOST_ROWS, 2**28 // max(1, parameters)))


def is_known_to_be_by_row(module: nn.Module) -> bool:
    """Return True if every part of the module is known to treat each row by itself.

    Examples
    --------
    >>> is_known_to_be_by_row(nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Tanh()))
    True
    >>> is_known_to_be_by_row(nn.Softmax(dim=0))
    False
    """
    return all(_is_by_row(part) and not is_altered(part) for part in module.modules())


def _is_by_row(layer: nn.Module) -> bool:
    kind = type(layer)
    if kind in _FROM_DIMENSION:
        # A negative dimension may be that of the rows.
        return bool((getattr(layer, _FROM_DIMENSION[kind]) or 0) > 0)
    return kind in _BY_ROW


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


def find_coupling(
    model: Model,
    X: Any,
    y: Any,
    *,
    sums: bool,
    repeated: bool,
    batch_size: int | None = None,
    parts: Sequence[tuple[Any, Any, int]] | None = None,
) -> Where | None:
    """Return where rows are coupled, or None if a batch may be divided.

    Parameters
    ----------
    model : Model
        What is trained.
    X, y : trees of tensors
        Some rows of the training set.
    sums : bool
        Whether the loss is a sum over rows.
    repeated : bool
        Whether one process evaluates the parts one after the other, as micro-batches are, so that
        buffers that change with every forward pass change more often.
    batch_size : int, optional
        If the model cannot evaluate all rows at once, this number of rows is tried.
    parts : sequence of (X, y, rows), optional
        The two parts of these rows, if others than a loader would make them. By default the rows
        are cut.
    """
    if any(after_accumulation(p) for p in model.parameters):
        return "hook"
    if parts is None:
        if not only_tensors([X, y]) or len({len(leaf) for leaf in leaves([X, y])}) != 1:
            return None  # rows of anything else cannot be separated here
        rows = len(leaves(X)[0])
        if rows < 2:
            return None
        # Odd numbers of rows in both parts, so that rows that belong to each other are separated.
        cut = max(1, rows * 5 // 8)
        cut += rows > 2 and rows % 2 == 0 and cut % 2 == 0
        parts = cut_rows([X, y], [0, cut, rows])
    batch = Rows(X, y, parts)
    with nothing_changes(model) as reset:
        try:
            where, difference = _compare(model, batch, sums, reset, repeated=repeated)
            return _judge(model, batch, sums, reset, where, difference)
        except RaisesError:
            pass  # training raises it, too, and explains it; unless there are too many rows
    if batch_size is None or batch_size >= batch.rows or not only_tensors([X, y]):
        return None
    X, y = slice_rows([X, y], 0, batch_size)
    return find_coupling(model, X, y, sums=sums, repeated=repeated)


def _judge(
    model: Model, batch: Rows, sums: bool, reset: Reset, where: Where | None, difference: float
) -> Where | None:
    """Return where rows are coupled; look again in double precision if it may be rounding."""
    dtype = _dtype(model)
    suspicious, certain = _SUSPICIOUS.get(dtype, _COARSE)
    if where is None or where == "buffers" or difference <= suspicious:
        return where if where == "buffers" and difference > suspicious else None
    if dtype == torch.float64 or difference == np.inf or not only_tensors([batch.X, batch.y]):
        return where if dtype == torch.float64 or difference > certain else None
    try:
        with in_double_precision(model, reset) as wide_reset:
            where, difference = _compare(model, batch.in_double_precision(), sums, wide_reset)
    except Exception:
        return where if difference > certain else None
    return where if difference > _SUSPICIOUS[torch.float64][0] else None


def after_accumulation(parameter: torch.Tensor) -> bool:
    """Return True if somebody looks at a gradient after it is added to ``.grad``."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None)) and bool(
        hooks_of(parameter)
    )


def _dtype(model: Model) -> torch.dtype:
    dtypes = {p.dtype for p in model.parameters if p.is_floating_point()}
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def _evaluate_again(model: Model, part: tuple[Any, Any, int]) -> Found | None:
    """Return what a part yields after the trial before; None if that raises."""
    try:
        return evaluate(model, *part[:2], None)
    except RaisesError:
        return None


def _compare(
    model: Model, batch: Rows, sums: bool, reset: Reset, *, repeated: bool = False
) -> tuple[Where | None, float]:
    """Return where a batch differs from its parts, and the relative difference."""
    whole = evaluate(model, batch.X, batch.y, reset)
    if not bool(whole.loss.isfinite()):
        return None, 0.0  # nothing to compare
    first, second = batch.parts
    after_whole = _evaluate_again(model, second)
    try:
        found = [evaluate(model, *first[:2], reset)]
        after_part = _evaluate_again(model, second)
        if repeated and after_part is not None:
            found.append(after_part)
        else:
            found.append(evaluate(model, *second[:2], reset))
    except RaisesError as error:
        return error.where, np.inf  # it needs rows that are in the other part
    if after_whole is None or after_part is None:
        raise RaisesError("module")  # it counts calls, and the rows are not what it needs
    total = mass(model.criterion, batch.y, batch.rows)
    shares = [
        1.0 if sums else share_of(model.criterion, y, rows, total) for _, y, rows in batch.parts
    ]
    if differ(whole.buffers, found[-1].buffers, 1e-5):
        return "buffers", np.inf
    if 0.0 in shares:
        return None, 0.0
    difference = _difference(whole, found, shares)
    joined = concatenate([part.y_pred for part in found]) if _joinable(found) else whole.y_pred
    same = len(leaves(joined)) == len(leaves(whole.y_pred)) and not differ(
        leaves(whole.y_pred), leaves(joined)
    )
    remembered = _difference(after_whole, [after_part], [1.0])
    if same and remembered > difference:
        # What the rows before left behind, such as a running mean, has changed the loss.
        return "buffers", remembered
    if same:
        difference = max(difference, try_losses(model, batch, whole.y_pred, sums, reset))
    return ("loss" if same else "module"), difference


def _difference(whole: Found, found: Sequence[Found], shares: Sequence[float]) -> float:
    """Return how far loss and gradient of some rows are from the sums of those of the parts."""
    losses = [share * part.loss.double() for share, part in zip(shares, found, strict=True)]
    everything = torch.stack([whole.loss.double(), *losses])
    if not bool(everything.isfinite().all()):
        return np.inf
    scale = float(everything.abs().sum())
    difference = float((everything[0] - everything[1:].sum()).abs()) / max(scale, 1e-300)
    combined = [
        sum(share * one.double() for share, one in zip(shares, gradients, strict=True))
        for gradients in zip(*(part.gradient for part in found), strict=True)
    ]
    size = sum(
        share * norm(part.gradient)
        for share, part in zip([1.0, *shares], [whole, *found], strict=True)
    )
    distance = norm([a.double() - b for a, b in zip(whole.gradient, combined, strict=True)])
    return max(difference, distance / size if size > 1e-300 else 0.0)


def _joinable(found: Sequence[Found]) -> bool:
    if not only_tensors([part.y_pred for part in found]):
        return False
    shapes = [[leaf.shape[1:] for leaf in leaves(part.y_pred)] for part in found]
    return all(one == shapes[0] for one in shapes)


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
