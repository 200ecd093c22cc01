"""Whether rows are coupled: a batch is compared with its parts before anything is divided.

Ranks and micro-batches add up the gradients of parts of a batch. That is the gradient of the batch
if its loss is a mean or a sum over rows, and it is not for a contrastive loss, for Dice, or for a
module that computes statistics over the rows. The only way to know is to try: the loss, the
gradient and the buffers of some rows are compared with those of two parts of them.

Nothing is changed by that: random numbers are constants meanwhile, BatchNorm (which ranks
synchronize) does not look at the rows, and buffers, attributes and generators are put back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from accelerando._engine._torch import ConstantRandomness, batch_norm_class
from accelerando._engine.data.feed import concatenate, leaves, map_leaves, only_tensors, slice_rows
from accelerando._engine.micro_batch import couples_rows, mass, share_of
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit
    from accelerando._engine.model import Model

Where = Literal["module", "loss", "buffers"]

Reset = Callable[[], None]

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
    return all(type(part) in _BY_ROW for part in module.modules())


class _Found(NamedTuple):
    """What some rows yield."""

    y_pred: Any
    loss: torch.Tensor
    gradient: list[torch.Tensor]
    buffers: list[torch.Tensor]


def find_coupling(model: Model, X: Any, y: Any, *, sums: bool, repeated: bool) -> Where | None:
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
    """
    if not only_tensors([X, y]) or len({len(leaf) for leaf in leaves([X, y])}) != 1:
        return None  # rows of anything else cannot be separated here
    rows = len(leaves(X)[0])
    if rows < 2:
        return None
    cuts = [0, max(1, rows * 5 // 8), rows]
    with _nothing_changes(model) as reset:
        try:
            where, difference = _compare(model, X, y, cuts, sums, reset, repeated=repeated)
        except Exception:
            return None  # training raises it, too, and explains it
        dtype = _dtype(model)
        suspicious, certain = _SUSPICIOUS.get(dtype, _COARSE)
        if where is None or where == "buffers" or difference <= suspicious:
            return where if where == "buffers" else None
        if dtype == torch.float64:
            return where
        try:
            with _in_double_precision(model, reset) as wide_reset:
                wide_X, wide_y = map_leaves(_double, X), map_leaves(_double, y)
                where, difference = _compare(model, wide_X, wide_y, cuts, sums, wide_reset)
        except Exception:
            return where if difference > certain else None
        return where if difference > _SUSPICIOUS[torch.float64][0] else None


def _dtype(model: Model) -> torch.dtype:
    dtypes = {p.dtype for p in model.parameters if p.is_floating_point()}
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def _double(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf


def _compare(
    model: Model,
    X: Any,
    y: Any,
    cuts: Sequence[int],
    sums: bool,
    reset: Reset,
    *,
    repeated: bool = False,
) -> tuple[Where | None, float]:
    """Return where a batch differs from its parts, and the relative difference."""
    whole = _evaluate(model, X, y, reset)
    parts: list[_Found] = []
    shares: list[float] = []
    total = mass(model.criterion, y, cuts[-1])
    for start, stop in pairwise(cuts):
        some = slice_rows(y, start, stop)
        clean = reset if not (repeated and parts) else None
        parts.append(_evaluate(model, slice_rows(X, start, stop), some, clean))
        shares.append(1.0 if sums else share_of(model.criterion, some, stop - start, total))
    losses = [share * part.loss.double() for share, part in zip(shares, parts, strict=True)]
    everything = torch.stack([whole.loss.double(), *losses])
    if not bool(everything.isfinite().all()) or 0.0 in shares:
        return None, 0.0  # nothing to compare
    scale = float(everything.abs().sum())
    difference = float((everything[0] - everything[1:].sum()).abs()) / max(scale, 1e-300)
    combined = [
        sum(share * one.double() for share, one in zip(shares, found, strict=True))
        for found in zip(*(part.gradient for part in parts), strict=True)
    ]
    size = sum(
        share * _norm(part.gradient)
        for share, part in zip([1.0, *shares], [whole, *parts], strict=True)
    )
    distance = _norm([a.double() - b for a, b in zip(whole.gradient, combined, strict=True)])
    difference = max(difference, distance / size if size > 1e-300 else 0.0)
    if _differ(whole.buffers, parts[-1].buffers, 1e-5):
        return "buffers", difference
    joined = concatenate([part.y_pred for part in parts]) if _joinable(parts) else whole.y_pred
    same = len(leaves(joined)) == len(leaves(whole.y_pred)) and not _differ(
        leaves(whole.y_pred), leaves(joined)
    )
    return ("loss" if same else "module"), difference


def _joinable(parts: Sequence[_Found]) -> bool:
    return only_tensors([part.y_pred for part in parts])


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return float(torch.stack([t.double().norm() for t in tensors]).norm()) if tensors else 0.0


def _differ(first: Sequence[Any], second: Sequence[Any], single: float = 1e-3) -> bool:
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


def _evaluate(model: Model, X: Any, y: Any, reset: Reset | None) -> _Found:
    if reset is not None:
        reset()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with torch.enable_grad(), ConstantRandomness():  # type: ignore[no-untyped-call]
        y_pred = model.forward(X, model.module)
        loss = model.loss(y_pred, y, X)
        if loss.dim():
            raise UnsupportedError("no single number")
        found = torch.autograd.grad(loss, model.parameters, allow_unused=True)
    gradient = [
        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for p, g in zip(model.parameters, found, strict=True)
    ]
    detached = map_leaves(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, y_pred)
    return _Found(detached, loss.detach(), gradient, [b.clone() for b in _buffers(model)])


def _parts(model: Model) -> list[nn.Module]:
    tops = [part for part in (model.module, model.criterion) if isinstance(part, nn.Module)]
    return [part for top in tops for part in top.modules()]


def _buffers(model: Model) -> list[torch.Tensor]:
    """Return what a forward pass may change: buffers, and tensors that are plain attributes."""
    kind = batch_norm_class()
    found: list[torch.Tensor] = []
    for part in _parts(model):
        if not isinstance(part, kind):
            found += [b for b in part.buffers(recurse=False) if b.numel()]
            found += [v for v in vars(part).values() if type(v) is torch.Tensor and v.numel()]
    return [tensor.detach() for tensor in found]


@contextmanager
def _nothing_changes(model: Model) -> Iterator[Reset]:
    """Put back what forward passes inside change; yield a function that does so between them."""
    training = [(part, part.training) for part in _parts(model)]
    attributes = [(part, dict(vars(part))) for part in _parts(model)]
    lists = [(v, list(v)) for _, kept in attributes for v in kept.values() if isinstance(v, list)]
    tensors = [b for part in _parts(model) for b in part.buffers(recurse=False)]
    tensors += [v for _, kept in attributes for v in kept.values() if type(v) is torch.Tensor]
    values = [tensor.detach().clone() for tensor in tensors]
    registered = [(part, dict(part.named_buffers(recurse=False))) for part in _parts(model)]
    states = random.getstate(), np.random.get_state()
    devices = sorted({p.device.index or 0 for p in model.parameters if p.is_cuda})
    layers = [part for part in model.module.modules() if isinstance(part, batch_norm_class())]

    def reset() -> None:
        for part, kept in attributes:
            present = vars(part)
            for name in [name for name in present if name not in kept]:
                del present[name]
            present.update(kept)
        for part, kept in registered:
            for name, buffer in kept.items():
                setattr(part, name, buffer)
        for one, content in lists:
            one[:] = content
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                if tensor.dtype == value.dtype:
                    tensor.copy_(value)
        for layer in layers:
            vars(layer)["forward"] = _Affine(layer)

    with torch.random.fork_rng(devices=devices):
        try:
            model.train(True)
            attributes = [(part, dict(vars(part))) for part in _parts(model)]
            plain = [(layer, vars(layer).get("forward")) for layer in layers]
            yield reset
        finally:
            reset()
            for layer, forward in plain:
                vars(layer).pop("forward")
                if forward is not None:
                    vars(layer)["forward"] = forward
            for part, mode in training:
                part.training = mode
            random.setstate(states[0])
            np.random.set_state(states[1])


class _Affine:
    """BatchNorm without statistics: ranks compute those of all rows."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.layer.affine:
            return x
        shape = [1, -1, *[1] * (x.dim() - 2)]
        scaled: torch.Tensor = x * self.layer.weight.view(shape) + self.layer.bias.view(shape)
        return scaled


@contextmanager
def _in_double_precision(model: Model, reset: Reset) -> Iterator[Reset]:
    """Let parameters and buffers be in double precision; put back the tensors that were there."""
    parts = _parts(model)
    parameters = [p for part in parts for p in part.parameters(recurse=False)]
    kept = [(p, p.data) for p in dict.fromkeys(parameters) if p.is_floating_point()]
    reset()
    buffers = [(part, *named) for part in parts for named in part.named_buffers(recurse=False)]

    def wide_reset() -> None:
        reset()
        for part, name, buffer in buffers:
            setattr(part, name, _double(buffer))

    try:
        for parameter, data in kept:
            parameter.data = data.double()
        yield wide_reset
    finally:
        for parameter, data in kept:
            parameter.data = data
        reset()


# -- what follows from it -------------------------------------------------------------------------

_WHAT = {
    "loss": "the loss of a row depends on the other rows of its batch, as that of a contrastive "
    "loss or of Dice does",
    "module": "the module's output for a row depends on the other rows of its batch, as with "
    "statistics over the batch or attention over its first axis",
    "buffers": "the module or the criterion remembers something about the rows it has seen in a "
    "forward pass (a buffer or a tensor attribute)",
}
_ALONE = "train in one process (client=None) or on one rank (max_workers=1)"
_REMEDY = {
    "loss": 'Pass couples_rows="gather", which computes the loss of the whole batch on every rank; '
    f"or {_ALONE}",
    "module": "Use nn.BatchNorm, whose statistics ranks share, or a norm over single rows "
    f"(GroupNorm, LayerNorm), and check which axis is the batch; or {_ALONE}. "
    'couples_rows="gather" gathers outputs and cannot help inside the module',
    "buffers": f"Keep no memory of rows in the module; or {_ALONE}",
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
    if spec.divisible and is_known_to_be_by_row(model.module):
        return size
    some = slice_rows([X, y], 0, rows_to_compare(model)) if only_tensors([X, y]) else [X, y]
    where = find_coupling(model, *some, sums=spec.sums, repeated=not spec.probes)
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
