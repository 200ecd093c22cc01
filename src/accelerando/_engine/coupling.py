"""Whether rows are coupled: a batch is compared with its parts before anything is divided.

Ranks and micro-batches add up the gradients of parts of a batch. That is the gradient of the batch
if its loss is a mean or a sum over rows, and it is not for a contrastive loss, for Dice, or for a
module that computes statistics over the rows. The only way to know is to try: the loss, the
gradient and the buffers of some rows are compared with those of two parts of them.

Nothing is changed by that: random numbers are constants meanwhile, BatchNorm (which ranks
synchronize) does not look at the rows, and buffers, attributes and generators are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from accelerando._engine._torch import hooks_of
from accelerando._engine.data.feed import concatenate, leaves, only_tensors, slice_rows
from accelerando._engine.micro_batch import couples_rows, is_altered, mass, may_broadcast, share_of
from accelerando._engine.parts import (
    Found,
    RaisesError,
    Rows,
    Where,
    cut_rows,
    differ,
    evaluate,
    norm,
    try_losses,
)
from accelerando._engine.snapshot import Reset, in_double_precision, nothing_changes
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit
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


def rows_to_compare(model: Model) -> int:
    """Return how many rows to look at: fewer of a larger model."""
    parameters = sum(p.numel() for p in model.parameters)
    return max(FEWEST_ROWS, min(MOST_ROWS, 2**28 // max(1, parameters)))


def is_known_to_be_by_row(module: nn.Module) -> bool:
    """Return True if every part of the module is known to treat each row by itself.

    Examples
    --------
    >>> is_known_to_be_by_row(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    True
    """
    return all(type(part) in _BY_ROW and not is_altered(part) for part in module.modules())


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
        # Odd numbers of rows in both parts, so that rows that belong together are torn apart.
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
    difference = _apart(whole, found, shares)
    joined = concatenate([part.y_pred for part in found]) if _joinable(found) else whole.y_pred
    same = len(leaves(joined)) == len(leaves(whole.y_pred)) and not differ(
        leaves(whole.y_pred), leaves(joined)
    )
    remembered = _apart(after_whole, [after_part], [1.0])
    if same and remembered > difference:
        # What the rows before left behind, such as a running mean, has changed the loss.
        return "buffers", remembered
    if same:
        difference = max(difference, try_losses(model, batch, whole.y_pred, sums, reset))
    return ("loss" if same else "module"), difference


def _apart(whole: Found, found: Sequence[Found], shares: Sequence[float]) -> float:
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
    apart = norm([a.double() - b for a, b in zip(whole.gradient, combined, strict=True)])
    return max(difference, apart / size if size > 1e-300 else 0.0)


def _joinable(found: Sequence[Found]) -> bool:
    if not only_tensors([part.y_pred for part in found]):
        return False
    shapes = [[leaf.shape[1:] for leaf in leaves(part.y_pred)] for part in found]
    return all(one == shapes[0] for one in shapes)


# -- what follows from it -------------------------------------------------------------------------

_WHAT = {
    "loss": "the loss of a row depends on the other rows of its batch, as that of a contrastive "
    "loss or of Dice does",
    "module": "the module's output for a row depends on the other rows of its batch, as with "
    "statistics over the batch or attention over its first axis",
    "buffers": "the module or the criterion remembers something about the rows it has seen in a "
    "forward pass (a buffer, a tensor, a running number), and computes with it",
    "padding": "what the module or the loss makes of a row depends on how far iterator_train__"
    "collate_fn pads it, which depends on the other rows of its batch",
    "hook": "a hook looks at gradients after they are accumulated (register_post_accumulate_grad_"
    "hook), which are those of a part of the batch",
}
_ALONE = "train in one process (client=None) or on one rank (max_workers=1)"
_REMEDY = {
    "loss": 'Pass couples_rows="gather", which computes the loss of the whole batch on every rank; '
    f"or {_ALONE}",
    "module": "Use nn.BatchNorm, whose statistics ranks share, or a norm over single rows "
    f"(GroupNorm, LayerNorm), and check which axis is the batch; or {_ALONE}. "
    'couples_rows="gather" gathers outputs and cannot help inside the module',
    "buffers": f"Keep no memory of rows in the module; or {_ALONE}",
    "padding": "Mask the padding in the module and in the loss, or pad to a fixed length; or "
    f"{_ALONE}",
    "hook": "Use a callback with on_grad_computed, which sees the gradient of the whole batch; or "
    f"{_ALONE}",
}


def refuse_on_ranks(where: Where, *, gathers: bool) -> None:
    """Raise if coupled rows would be divided among ranks; gathering outputs helps a loss only."""
    if gathers and where == "loss":
        return
    raise UnsupportedError(
        f"Ranks divide a batch, and {_WHAT[where]}: the result would depend on the number of "
        f"ranks. {_REMEDY[where]}. If you know better, couples_rows=False trains without this "
        "check."
    )


def settle_division(fit: Fit, X: Any, y: Any, rows: int, size: int) -> int:
    """Return the size of micro-batches: all rows if these turn out to be coupled.

    Raises
    ------
    UnsupportedError
        If the user asked for a division that would change the result.
    """
    micro, spec, model = fit.state.micro_batch, fit.spec, fit.model
    micro.verified = True
    if spec.couples_rows is False or (couples_rows(model.module) and not spec.probes):
        return size
    if (
        spec.divisible
        and is_known_to_be_by_row(model.module)
        and not may_broadcast(model.criterion)
    ):
        return size
    some = slice_rows([X, y], 0, rows_to_compare(model)) if only_tensors([X, y]) else [X, y]
    usual = min(rows, size if fit.comm.alone else rows)
    where = find_coupling(model, *some, sums=spec.sums, repeated=not spec.probes, batch_size=usual)
    if where is None:
        return size
    if spec.probes:
        refuse_on_ranks(where, gathers=spec.couples_rows == "gather")
    if micro.fixed is not None:
        raise UnsupportedError(
            f"micro_batch_size={micro.fixed} divides a batch, and {_WHAT[where]}: the result would "
            'depend on the size of micro-batches. Leave micro_batch_size at "auto", which then '
            "does not divide. If you know better, couples_rows=False trains without this check."
        )
    if fit.control.looks_at_parts and fit.comm.alone:
        raise UnsupportedError(
            f"A monitor compares the gradients of parts of a batch, and {_WHAT[where]}. Leave the "
            "monitor or the policy that needs it out."
        )
    micro.whole = True
    return rows
