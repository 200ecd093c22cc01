r"""Row norms: the squared gradient norm of every single row, without a second backward pass.

The gradient of a row in a layer's weight follows from the layer's input and the gradient of its
output, which the backward pass computes anyway. For a linear layer with inputs :math:`x_t` and
output gradients :math:`\delta_t` at the positions :math:`t` of a row,

.. math:: \Bigl\|\sum_t \delta_t x_t^\top\Bigr\|^2
    = \sum_{t,u} (\delta_t \cdot \delta_u)\,(x_t \cdot x_u),

and the cheaper side is computed. With one position that is :math:`\|\delta\|^2 \|x\|^2` (I.
Goodfellow, *Efficient per-example gradient computations*, arXiv:1510.01799). A convolution is a
linear layer whose positions are patches; layers that normalize and embeddings have sums of their
own (G. Gray et al., *Normalization layer per-example gradients are sufficient to predict gradient
noise scale in transformers*, arXiv:2411.00999).

Hooks look at the layers during the updates that are measured. Whether their sum is right is not
assumed but tried, on three rows: a layer may see another axis than the rows first, be called twice,
or share its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.grad import conv3d_weight

from accelerando._engine.comm.communicator import LocalGradient, PartNorms
from accelerando._engine.data.feed import leaves, only_tensors, slice_rows
from accelerando._engine.micro_batch import couples_rows, every_row_counts
from accelerando._engine.trial import RaisesError, evaluate, nothing_changes

if TYPE_CHECKING:
    from accelerando._engine.data.feed import Batch
    from accelerando._engine.loop import Fit
    from accelerando._engine.model import Model

_TRIED = 3  # rows on which the norms are compared with gradients of single rows
_FIRST = 100  # updates that are all measured, so that estimates are soon known
_MOST = 1000  # measurements up to which an estimate that is not known is worth its cost
_SHARE = 0.02  # of the time of training that measurements may take
# What is not arithmetic, in multiply-adds that take as long on one core (45 per nanosecond): Python
# and dispatch of one layer's forward pass, backward pass and optimizer; of the hooks of one layer;
# of a monitor; reading one number of an input or an output gradient and writing its square.
_LAYER, _HOOKS, _MONITOR, _READ = 2.7e6, 2.3e6, 4.5e6, 20.0


class RowNorms:
    """The sum of the squared gradient norms of the rows of a batch.

    Parameters
    ----------
    module : torch.nn.Module
        What is trained.
    parameters : sequence of Tensor
        All learnable parameters, those of the criterion included.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> norms = RowNorms(layer, list(layer.parameters()))
    >>> with norms.measuring():
    ...     layer(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).sum().backward()
    >>> norms.square()
    26.0
    """

    def __init__(self, module: nn.Module, parameters: Iterable[torch.Tensor]) -> None:
        wanted = {id(p) for p in parameters}
        self.layers = [
            part
            for part in module.modules()
            if any(id(p) in wanted for p in part.parameters(recurse=False))
        ]
        owned = [id(p) for part in self.layers for p in part.parameters(recurse=False)]
        once = len(owned) == len(set(owned))
        self.complete = once and wanted <= set(owned) and all(map(_is_known, self.layers))
        self.module = module
        self.batch = 0  # rows of the update
        self.due = True
        self._rows = 0  # of a micro-batch
        self._squares: list[torch.Tensor] = []
        self._called: set[int] = set()
        self._wrong = False
        self._work = self._usual = 0.0
        self._of_a_row = 0.0, 0.0  # multiply-adds of the norms, and of forward and backward pass
        self._handles: list[Any] = []

    # -- one measurement --------------------------------------------------------------------------

    def measuring(self, *, due: bool = True) -> RowNorms:
        """Return a context that looks at forward and backward passes inside, if it is due."""
        self.due, self._squares, self._wrong = due, [], False
        return self

    def __enter__(self) -> RowNorms:
        if self.due:
            begins = self.module.register_forward_pre_hook(self._begins, with_kwargs=True)
            looks = [layer.register_forward_hook(self._seen) for layer in self.layers]
            self._handles = [begins, *looks]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _begins(self, module: nn.Module, given: Any, named: Any) -> None:
        """Count the rows of a micro-batch."""
        shaped = (t for t in leaves([given, named]) if isinstance(t, torch.Tensor) and t.dim())
        first = next(shaped, None)
        self._rows = 0 if first is None else len(first)
        self._called.clear()

    def noted(self, local: LocalGradient, *, sums: bool) -> LocalGradient:
        """Return the gradient of all rows with the norms of the single ones, if they are known."""
        square = self.square() if self.due else math.nan
        if math.isnan(square):
            return local
        if not sums:  # of the rows' shares in the mean
            square *= self.batch
        return local._replace(noise=PartNorms(self.batch, square))

    def square(self) -> float:
        """Return the sum over the rows; nan if a layer was used in a way that is not known."""
        if self._wrong:
            return math.nan
        return float(sum(square.double() for square in self._squares))

    def _seen(self, layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        """Note the input of a layer, and look at the gradient of its output when there is one."""
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        # Rows must be the first axis, and a second call would need products of both calls.
        fits = len(given) == 1 and len(given[0]) == len(output) == self._rows
        if not fits or output.dim() < 2 or id(layer) in self._called:
            self._wrong = True
            return
        self._called.add(id(layer))
        x, formula = given[0].detach(), _FORMULAS[type(layer)]

        def gradient(delta: torch.Tensor) -> None:
            with torch.no_grad():
                self._squares.append(formula(layer, _wide(x), _wide(delta)))

        output.register_hook(gradient)  # type: ignore[no-untyped-call]
        work, usual = _cost(layer, x, output)
        self._work += work
        self._usual += usual

    # -- whether and when -------------------------------------------------------------------------

    def settle(self, model: Model, X: Any, y: Any, *, sums: bool) -> bool:
        """Return True if the norms are right for some rows; find out how often they pay."""
        if not self.complete or couples_rows(self.module) or not only_tensors([X, y]):
            return False
        rows = min(_TRIED, len(leaves(X)[0]))
        if rows < 2:
            return False
        some_X, some_y = some = slice_rows([X, y], 0, rows)
        try:
            with nothing_changes(model) as reset:
                exact = 0.0
                for row in range(rows):
                    one_X, one_y = slice_rows(some, row, row + 1)
                    found = evaluate(model, one_X, one_y, reset)
                    exact += sum(float((g.double() ** 2).sum()) for g in found.gradient)
                self._work = self._usual = 0.0
                reset()  # before the hooks, which it would remove
                with self.measuring():
                    evaluate(model, some_X, some_y, None)
        except RaisesError:
            return False
        found_square = self.square() * (1.0 if sums else rows**2)
        self._of_a_row = self._work / rows, self._usual / rows
        smallest = min((torch.finfo(p.dtype).eps for p in model.parameters), default=1e-7)
        largest = max((torch.finfo(p.dtype).eps for p in model.parameters), default=1e-7)
        tolerance = 1e-8 if largest < 1e-12 else max(1e-3, 8.0 * smallest)
        return abs(found_square - exact) <= tolerance * exact + 1e-30

    def interval(self, rows: int) -> int:
        """Return the updates between two measurements that cost at most the share.

        It depends on the rows of the whole batch only: all ranks measure in the same updates, and
        so does a run that is resumed.
        """
        calls, (work, usual) = len(self.layers), self._of_a_row
        work = rows * work + _HOOKS * calls + _MONITOR
        usual = rows * usual + _LAYER * (1 + calls)
        return max(1, math.ceil(work / usual / _SHARE))


def look_at_rows(fit: Fit, batch: Batch, X: Any, y: Any) -> RowNorms | None:
    """Return what looks at the rows of this update; None if only parts can be compared."""
    key = [id(p) for p in fit.model.parameters]
    if fit.row_norms is None or fit.row_norms[0] != key:  # a callback may have frozen some
        if not batch.held:
            return None
        found = RowNorms(fit.model.module, fit.model.parameters)
        good = found.settle(fit.model, X, y, sums=fit.spec.sums)
        fit.row_norms = key, found if good else None
    norms: RowNorms | None = fit.row_norms[1]
    if norms is None:
        return None
    control, state, spec = fit.control, fit.state, fit.spec
    every = control.looks_at_rows or norms.interval(batch.size)
    due = state.position.update % every == 0
    if not due and not control.looks_at_rows:
        due = control.learning(state.memories, _FIRST, _MOST)
    if due and not (spec.sums or spec.every_row_counts or every_row_counts(fit.model.criterion, y)):
        return None  # rows with different shares in the mean
    norms.batch = batch.held
    fit.comm.look_at_rows(norms.measuring(due=due))
    return norms


# -- the layers -----------------------------------------------------------------------------------


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _norm(values: torch.Tensor) -> torch.Tensor:
    flat = values.reshape(-1)
    return flat.dot(flat)


def _outer(delta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of the squared norm of the sum of outer products over positions."""
    positions, p, q = delta.shape[1], delta.shape[2], x.shape[2]
    if positions == 1:
        square: torch.Tensor = (delta * delta).sum((1, 2)).dot((x * x).sum((1, 2)))
        return square
    if positions * (p + q) < p * q:
        return (delta @ delta.mT).mul_(x @ x.mT).sum()
    return _norm(delta.mT @ x)


def _linear(layer: Any, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    x, delta = (t.reshape(len(t), -1, t.shape[-1]) for t in (x, delta))
    square = _outer(delta, x) if layer.weight.requires_grad else delta.new_zeros(())
    if layer.bias is not None and layer.bias.requires_grad:
        square = square + _norm(delta.sum(1))
    return square


def _embedding(layer: Any, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    # Positions of one row with the same index add up.
    rows = torch.arange(len(x), device=x.device).reshape(-1, *[1] * (x.dim() - 1))
    flat = delta.reshape(-1, delta.shape[-1])
    if layer.padding_idx is not None:
        flat = flat * (x.reshape(-1, 1) != layer.padding_idx)
    keys, which = (x + rows * layer.num_embeddings).reshape(-1).unique(return_inverse=True)
    return _norm(flat.new_zeros(len(keys), flat.shape[1]).index_add_(0, which, flat))


def _affine(layer: Any, normal: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return the norms of scale and shift; both arguments are (rows, positions, parameters)."""
    square = delta.new_zeros(())
    if layer.weight is not None and layer.weight.requires_grad:
        square = square + _norm((delta * normal).sum(1))
    if layer.bias is not None and layer.bias.requires_grad:
        square = square + _norm(delta.sum(1))
    return square


def _layer_norm(layer: Any, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    normal = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    size = math.prod(layer.normalized_shape)
    return _affine(layer, normal.reshape(len(x), -1, size), delta.reshape(len(x), -1, size))


def _group_norm(layer: Any, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
    shape = (len(x), x.shape[1], -1)
    return _affine(layer, normal.reshape(shape).mT, delta.reshape(shape).mT)


def _convolution(layer: Any, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    rows, groups, space = len(x), layer.groups, x.dim() - 2
    square = delta.new_zeros(())
    if layer.weight.requires_grad:
        if space == 3:  # there is no unfold: every row is a group of one convolution
            weight = layer.weight
            gradient = conv3d_weight(  # type: ignore[no-untyped-call]
                x.reshape(1, -1, *x.shape[2:]),
                (rows * weight.shape[0], *weight.shape[1:]),
                delta.reshape(1, -1, *delta.shape[2:]),
                layer.stride,
                layer.padding,
                layer.dilation,
                rows * groups,
            )
            square = _norm(gradient)
        else:
            size, step, apart, pad = (
                getattr(layer, n) for n in ("kernel_size", "stride", "dilation", "padding")
            )
            if space == 1:  # an image of one line
                x, delta = x.unsqueeze(2), delta.unsqueeze(2)
                size, step, apart, pad = (1, *size), (1, *step), (1, *apart), (0, *pad)
            patches = functional.unfold(x, size, apart, pad, step)
            shape = (rows * groups, -1, patches.shape[-1])
            square = _outer(delta.reshape(shape).mT, patches.reshape(shape).mT)
    if layer.bias is not None and layer.bias.requires_grad:
        square = square + _norm(delta.flatten(2).sum(2))
    return square


_FORMULAS: dict[type[nn.Module], Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
}


def _is_known(layer: nn.Module) -> bool:
    """Return True if there is a formula for a layer with these settings."""
    if type(layer) not in _FORMULAS:
        return False
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    padding = getattr(layer, "padding", ())
    return getattr(layer, "padding_mode", "zeros") == "zeros" and not isinstance(padding, str)


def _cost(layer: Any, x: torch.Tensor, output: torch.Tensor) -> tuple[float, float]:
    """Return the multiply-adds of the norms, and those of forward and backward pass."""
    rows = len(x)
    if isinstance(layer, nn.Linear):
        positions, p, q = x.numel() // (rows * x.shape[-1]), x.shape[-1], output.shape[-1]
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        positions = output[0, 0].numel()
        p, q = layer.weight[0].numel() * layer.groups, layer.out_channels // layer.groups
    else:
        return _READ * output.numel(), _READ * output.numel()
    usual, work = 3.0 * rows * positions * p * q, _READ * rows * positions * (p + q)
    if positions > 1:
        work += rows * min(positions**2 * (p + q), positions * p * q)
    return work, usual
