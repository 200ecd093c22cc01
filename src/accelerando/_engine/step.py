"""One update: the gradient of a batch in micro-batches, then ``optimizer.step``."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from accelerando._decisions import Plan, Settings
from accelerando._engine.comm.communicator import Gradient, LocalGradient, UpdateResult
from accelerando._engine.data.feed import (
    Batch,
    concatenate,
    leaves,
    only_tensors,
    slice_rows,
    unpack,
)
from accelerando._engine.micro_batch import mass, share_of, weighted_loss
from accelerando._engine.runtime.process import Draws
from accelerando.exceptions import NotFiniteError

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit

_STEP = 1  # seeds the draws of an optimizer, together with the seed and the update
_AS_THEY_ARE = nullcontext()  # a generator in every update takes as long as a small operation


def update(fit: Fit, plan: Plan, batch: Batch) -> UpdateResult:
    """Change the parameters once: every replica of this process takes its optimizer step."""
    state, comm = fit.state, fit.comm
    comm.begin_update(state, plan, batch)
    try:
        results = []
        for local in comm.local_batches(state, batch):
            with local.parameters():  # the module holds the tensors of this replica
                results.append(fit.step(fit, plan, local.batch))
    except BaseException as error:
        comm.abandon_update(state)
        if isinstance(error, NotFiniteError):
            from accelerando._engine.hints import look_for_nan

            look_for_nan(error, batch.data)
        elif isinstance(error, Exception):
            from accelerando._engine.hints import explain

            explain(error, batch.data, fit.model.module)
        raise
    return comm.after_step(state, plan, results)


def step(fit: Fit, plan: Plan, batch: Batch) -> UpdateResult:
    """Compute the gradient of the batch and call ``optimizer.step``."""
    model = fit.model
    lr = fit.state.lr(plan.lr_scale)
    if not model.module.training:
        model.train(True)
    weights = None if fit.spec.weights is None else _weights_of(fit.spec.weights, batch)
    # A non-finite update must not leave its statistics in BatchNorm.
    buffers = [buffer.clone() for buffer in model.buffers]
    evaluations: list[tuple[Gradient, float, float]] = []

    def gradient() -> torch.Tensor:
        for parameter in model.parameters:
            parameter.grad = None
        started = time.perf_counter()
        try:
            local = accumulate(fit, batch, weights)
            found = fit.comm.reduce(local, model.parameters)
            zeros: list[torch.Tensor] = []
            loss, norm = found.loss.item(), grad_norm(model.parameters, zeros)
            fit.comm.drop_unused(zeros)
            fit.state.micro_batch.observe(batch.held, time.perf_counter() - started)
            check_finite(fit, plan, loss, norm)
        except Exception:
            _restore(model.buffers, buffers)
            raise
        fit.hooks.gradients_ready(batch)
        evaluations.append((found, loss, norm))
        return found.loss

    if not model.needs_closure:
        gradient()
    norm = evaluations[0][2] if evaluations else math.inf
    closure = gradient if model.needs_closure else None
    if model.offers_closure and closure is None:
        from accelerando._engine.closures import offered

        closure = offered(model, gradient, evaluations[0][0].loss)
    draws: AbstractContextManager[None] = nullcontext()
    if model.own_steps:
        place = Draws(fit.state.seed, fit.state.position.update, _STEP)
        draws = place()
        if closure is not None:
            from accelerando._engine.closures import outside

            closure = outside(place, closure)
    with damped(model.optimizers, plan.lr_scale, plan.settings), draws:
        _step_or_restore(fit, plan, closure, lr, norm)
    found, loss, norm = evaluations[0]
    outputs = {"loss": found.loss, "y_pred": found.y_pred}
    return UpdateResult(loss, norm, lr, outputs, found.noise)


def custom_step(fit: Fit, plan: Plan, batch: Batch) -> UpdateResult:
    """Let the user's training step change the parameters."""
    model = fit.model
    lr = fit.state.lr(plan.lr_scale)
    if not model.module.training:
        model.train(True)
    with damped(model.optimizers, plan.lr_scale, plan.settings):
        result = model.custom_step(batch.data)
    loss, norm = result["loss"].item(), grad_norm(model.parameters)
    check_finite(fit, plan, loss, norm, stepped=True)
    return UpdateResult(loss, norm, lr, result)


# -- the gradient ---------------------------------------------------------------------------------


def accumulate(fit: Fit, batch: Batch, weights: torch.Tensor | None) -> LocalGradient:
    """Add the gradient of the batch's loss to ``.grad``, one micro-batch at a time.

    The rows are this process's share of the batch; the gradient is that of the global batch.
    """
    comm, micro, spec = fit.comm, fit.state.micro_batch, fit.spec
    X, y = unpack(batch.data)
    rows, alone = max(1, batch.held), comm.alone
    compares_parts = bool(fit.control.looks_at_parts) and alone
    size = micro.size(rows)
    if size < rows and not only_tensors([X, y]):
        size = rows  # rows of anything but tensors cannot be separated
    if not micro.verified and batch.held and (size < rows or spec.probes or compares_parts):
        from accelerando._engine.division import settle_division

        size = settle_division(fit, X, y, rows, size)
    if not alone and spec.couples_rows == "gather":
        from accelerando._engine.comm.gather import accumulate_gathered

        return accumulate_gathered(fit, batch, X, y, weights)
    if fit.control.looks_at_parts and spec.divisible and weights is None:
        from accelerando._engine.row_norms import look_at_rows

        norms = look_at_rows(fit, batch, X, y)
        if norms is not None:
            with norms:
                local = _in_parts(fit, batch, (X, y), None, size, compares_parts=False)
            return norms.noted(local, sums=spec.sums) if alone else local
    return _in_parts(fit, batch, (X, y), weights, size, compares_parts=compares_parts)


def _in_parts(
    fit: Fit,
    batch: Batch,
    data: tuple[Any, Any],
    weights: torch.Tensor | None,
    size: int,
    *,
    compares_parts: bool,
) -> LocalGradient:
    """Add the gradient of the batch's loss to ``.grad``, `size` rows at a time."""
    comm, micro, spec = fit.comm, fit.state.micro_batch, fit.spec
    (X, y), rows, alone = data, max(1, batch.held), comm.alone
    in_one_piece = size >= rows and not micro.probing
    if compares_parts and in_one_piece and _halve(fit, batch, [X, y]):
        size, in_one_piece = -(-rows // 2), False
    if alone and in_one_piece:
        loss, y_pred = _forward_backward(fit, X, y, rows, weights, 1.0, last=True)
        return LocalGradient([loss], y_pred)
    # The mass of rows on other ranks is known only after the reduction: until then rows count.
    whole = mass(fit.model.criterion, y, rows) if alone else float(batch.size)
    if in_one_piece:
        share = _share(fit, y, rows, whole) if batch.held else 0.0
        loss, y_pred = _forward_backward(fit, X, y, rows, weights, share, last=True)
        return LocalGradient([loss], y_pred)

    norms = None
    if compares_parts:
        from accelerando._engine.comm.gradient_noise import MicroBatchNorms

        norms = MicroBatchNorms(fit.model.parameters)
    losses: list[torch.Tensor] = []
    predictions: list[Any] = []
    start = 0
    while start < rows:
        stop = min(rows, start + size)
        divided = stop - start < rows
        part_X, part_y = (slice_rows(part, start, stop) if divided else part for part in (X, y))
        part_weights = None if weights is None else weights[start:stop]
        share = _share(fit, part_y, stop - start, whole) if batch.held else 0.0
        last = stop == rows
        with comm.micro_batch(last=last), micro.weighing(fit.model.module, stop - start):
            loss, y_pred = _forward_backward(
                fit, part_X, part_y, stop - start, part_weights, share, last=last
            )
        losses.append(loss)
        predictions.append(y_pred)
        if norms is not None:
            part_mass = float(stop - start) if spec.sums else share
            norms.add(grad_norm(fit.model.parameters) ** 2, part_mass)
            if not last:
                norms.set_aside()
        # The first micro-batch of a run is a probe, after which the size is known.
        start, size = stop, micro.size(rows)
    joined = concatenate(predictions) if only_tensors(predictions) else predictions
    if norms is None:
        return LocalGradient(losses, joined)
    norms.restore()
    return LocalGradient(losses, joined, norms.result(sums=spec.sums))


def _halve(fit: Fit, batch: Batch, data: Any) -> bool:
    """Return True if a batch is divided this time only to compare the gradients of its halves."""
    due = fit.state.position.update % fit.control.looks_at_parts == 0
    return due and fit.spec.divisible and batch.held >= 2 and only_tensors(data)


def _share(fit: Fit, y: Any, rows: int, whole: float) -> float:
    """Return the factor of a part's loss in the loss of a batch of mass `whole`."""
    if fit.spec.every_row_counts:
        return rows / whole
    return share_of(fit.model.criterion, y, rows, whole)


def _forward_backward(
    fit: Fit, X: Any, y: Any, rows: int, weights: torch.Tensor | None, share: float, *, last: bool
) -> tuple[torch.Tensor, Any]:
    """Return the share of the loss, and the predictions; all of a loss as callbacks expect it."""
    model, comm = fit.model, fit.comm
    y_pred = model.forward(X, comm.module(model.module))
    if share == 0.0:
        # Only ignored targets, whose mean is nan, or no row at all. Every hook must fire, so the
        # loss is zero times the outputs; zero times the loss could be nan.
        nothing = torch.stack([leaf.sum() for leaf in leaves(y_pred)]).sum() * 0.0
        comm.backward(nothing, 0.0, last=last)
        return torch.zeros(()), y_pred
    if weights is None:
        loss = model.loss(y_pred, y, X)
    else:
        loss = weighted_loss(model.criterion, lambda: model.loss(y_pred, y, X), y, weights, rows)
    if share != 1.0:
        loss = loss * share
    comm.backward(loss, 0.0 if fit.spec.sums else share, last=last)
    return loss if comm.alone else loss.detach(), y_pred


def _weights_of(weights: torch.Tensor, batch: Batch) -> torch.Tensor:
    assert batch.rows is not None
    return weights[torch.from_numpy(batch.rows)]


def grad_norm(parameters: Sequence[torch.Tensor], zeros: list[torch.Tensor] | None = None) -> float:
    """Return the Euclidean norm of all gradients; inf or nan if one is not finite.

    Parameters whose gradient is zero are appended to `zeros`.
    """
    squared = 0.0
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse or not gradient.is_contiguous():
            square = _norm(gradient) ** 2
        else:
            # A dot product reads memory once and stays in one thread: half the time of a norm.
            flat = gradient.flatten()
            square = flat.dot(flat).item()
        squared += square
        if square == 0.0 and zeros is not None:
            zeros.append(parameter)
    if math.isfinite(squared):
        return math.sqrt(squared)
    # Squares overflow long before the gradients do; in half precision very long before.
    return math.hypot(*(_norm(p.grad) for p in parameters if p.grad is not None))


def _norm(gradient: torch.Tensor) -> float:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


# -- the step -------------------------------------------------------------------------------------


def damped(
    optimizers: Sequence[torch.optim.Optimizer], scale: float, settings: Settings
) -> AbstractContextManager[None]:
    """Set learning rates, momentum and betas for one step, so that schedulers never see them."""
    if scale == 1.0 and settings.momentum is None and settings.betas is None:
        return _AS_THEY_ARE
    return _damped(optimizers, scale, settings)


@contextmanager
def _damped(
    optimizers: Sequence[torch.optim.Optimizer], scale: float, settings: Settings
) -> Iterator[None]:
    momentum, betas = settings.momentum, settings.betas
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    names = ("lr", "momentum", "betas")
    before = [{name: group[name] for name in names if name in group} for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * scale
        if "betas" in group:
            if betas is not None:
                group["betas"] = tuple(betas)
            elif momentum is not None:
                group["betas"] = (momentum, *group["betas"][1:])
        elif momentum is not None and "momentum" in group:
            group["momentum"] = momentum
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)


def _step_or_restore(
    fit: Fit, plan: Plan, closure: Callable[[], torch.Tensor] | None, lr: float, norm: float
) -> None:
    """Step, and undo the step if it left a parameter that is not finite.

    Parameters are copied only if the step could be that large: if the learning rate times the
    gradient comes near the largest number, or if the optimizer evaluates the loss itself.
    """
    model = fit.model
    parameters = model.parameters
    risky = not lr * max(1.0, norm) < 1e-8 * model.largest
    before = [p.detach().clone() for p in parameters] if risky else []
    try:
        model.step(closure)
        if before and not all(bool(p.isfinite().all()) for p in parameters):
            from accelerando._engine import hints

            raise hints.not_finite(
                fit, plan, "step made a parameter overflow: the result is not finite"
            )
    except ArithmeticError:
        _restore(parameters, before)
        raise


def has_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if another library, or the user, wrote ``step``: it may draw random numbers.

    Langevin dynamics and private gradients do. All ranks must draw the same ones.
    """
    step = getattr(type(optimizer), "step", torch.optim.Optimizer.step)
    return not inspect.unwrap(step).__module__.startswith("torch.")


def offers_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if another library, or the user, wrote a ``step`` that accepts a closure."""
    if not has_own_step(optimizer):
        return False
    return "closure" in inspect.signature(inspect.unwrap(type(optimizer).step)).parameters


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the optimizer evaluates the loss itself, like L-BFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def largest_number(parameters: Sequence[torch.Tensor]) -> float:
    """Return the largest finite number that every floating dtype of the parameters can hold."""
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    return min((torch.finfo(dtype).max for dtype in dtypes), default=1.0)


def _restore(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=False):
            tensor.copy_(value)


def check_finite(fit: Fit, plan: Plan, loss: float, norm: float, *, stepped: bool = False) -> None:
    """Raise if the loss or the gradient of an update is not finite.

    `stepped` says that the parameters have changed already, as in a user's training step.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        return
    what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient's norm is {norm}"
    from accelerando._engine import hints

    raise hints.not_finite(fit, plan, what, stepped=stepped)
