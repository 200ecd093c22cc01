"""Gradients of a batch: forward and backward in micro-batches, and whether the result is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from skorch.dataset import unpack_data

from accelerando.exceptions import NotFiniteError
from accelerando.train.loss import mass, weighted_loss
from accelerando.train.parts import Parts, Tally
from accelerando.train.tree import concatenate, leaves, only_tensors, slice_rows

if TYPE_CHECKING:
    from accelerando.train.feed import Batch
    from accelerando.train.loop import Training


class Gradient(NamedTuple):
    """What a forward and backward pass yields beside the gradients in ``.grad``."""

    loss: torch.Tensor
    y_pred: Any
    parts: Parts | None = None


class Step(NamedTuple):
    """What one update yields, for callbacks and records."""

    loss: float
    grad_norm: float
    lr: float
    for_callbacks: dict[str, Any]
    parts: Parts | None = None


def accumulate(training: Training, batch: Batch, weights: torch.Tensor | None) -> Gradient:
    """Add the gradient of the batch's mean loss to ``.grad``, one micro-batch at a time.

    The rows are this rank's share of the batch; the gradient is that of the whole batch.
    """
    net, micro, world = training.net, training.micro, training.world
    X, y = unpack_data(batch.data)
    rows, alone = max(1, batch.held), world.alone
    size = micro.size(rows)
    if size < rows and not only_tensors([X, y]):
        size = rows  # rows of anything but tensors cannot be told apart
    in_one_piece = size >= rows and not micro.probing
    looks = training.control.looks_at_parts and alone
    if looks and in_one_piece and _halve(training, batch, [X, y]):
        size, in_one_piece = -(-rows // 2), False
    if alone and in_one_piece:
        return _part(training, X, y, rows, weights, 1.0, last=True)
    # The mass of the rows on other ranks is known only when the gradients have met.
    whole = mass(net.criterion_, y, rows) if alone else float(batch.size)
    if in_one_piece:
        share = training.share(y, rows, whole) if batch.held else 0.0
        part = _part(training, X, y, rows, weights, share, last=True)
        return Gradient(world.agree([part.loss], training.parameters), part.y_pred, world.parts)

    tally = Tally(training.parameters) if looks else None
    parts: list[Gradient] = []
    start = 0
    while start < rows:
        stop = min(rows, start + size)
        part_y = slice_rows(y, start, stop) if stop - start < rows else y
        part_X = slice_rows(X, start, stop) if stop - start < rows else X
        part_weights = None if weights is None else weights[start:stop]
        share = training.share(part_y, stop - start, whole) if batch.held else 0.0
        last = stop == rows
        with world.passing(last=last), micro.weighing(net.module_, stop - start):
            part = _part(training, part_X, part_y, stop - start, part_weights, share, last=last)
        parts.append(part)
        if tally is not None:
            mass_of_part = float(stop - start) if training.sums else share
            tally.note(grad_norm(training.parameters) ** 2, mass_of_part)
            if not last:
                tally.set_aside()
        start, size = stop, micro.size(rows)
    predicted = [part.y_pred for part in parts]
    joined = concatenate(predicted) if only_tensors(predicted) else predicted
    if tally is not None:
        tally.bring_back()
    loss = world.agree([part.loss for part in parts], training.parameters)
    seen = world.parts if tally is None else tally.parts(sums=training.sums)
    return Gradient(loss, joined, seen)


def _halve(training: Training, batch: Batch, data: Any) -> bool:
    """Tell whether a batch goes in two halves this time, only to compare their gradients."""
    due = training.run.update % training.control.looks_at_parts == 0
    return due and training.divisible and batch.held >= 2 and only_tensors(data)


def _part(
    training: Training,
    X: Any,
    y: Any,
    rows: int,
    weights: torch.Tensor | None,
    share: float,
    *,
    last: bool,
) -> Gradient:
    net, world = training.net, training.world
    y_pred = world.forward(net, X, training.fit_params, plain=training.plain.passes_on(X))
    if share == 0.0:  # nothing but ignored targets, whose mean is not a number; or no row at all
        nothing = torch.stack([leaf.sum() for leaf in leaves(y_pred)]).sum() * 0.0
        world.backward(nothing, 0.0, last=last)
        return Gradient(torch.zeros(()), y_pred)
    if weights is not None:
        loss = weighted_loss(net, y_pred, y, X, weights, rows)
    elif training.plain.compares(y):
        loss = net.criterion_(y_pred, y)
    else:
        loss = net.get_loss(y_pred, y, X=X, training=True)
    if share != 1.0:
        loss = loss * share
    world.backward(loss, 0.0 if training.sums else share, last=last)
    return Gradient(loss.detach(), y_pred)


def grad_norm(parameters: Sequence[torch.Tensor]) -> float:
    """Return the Euclidean norm of all gradients together; inf or nan if one is not finite."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squared = 0.0
    for gradient in gradients:
        if gradient.is_sparse or not gradient.is_contiguous():
            squared += _norm(gradient) ** 2
        else:
            # A dot product reads memory once and stays in one thread: half the time of a norm.
            flat = gradient.view(-1)
            squared += flat.dot(flat).item()
    if math.isfinite(squared):
        return math.sqrt(squared)
    # Squares overflow long before the gradients do; in half precision very long before.
    return math.hypot(*(_norm(gradient) for gradient in gradients))


def _norm(gradient: torch.Tensor) -> float:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def check_finite(training: Training, loss: float, norm: float, *, stepped: bool = False) -> None:
    """Raise if the loss or the gradient of an update is not finite.

    `stepped` says that the parameters have moved already, as in a user's own ``train_step``.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        return
    what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient's norm is {norm}"
    raise not_finite(training, what, stepped=stepped)


def not_finite(training: Training, what: str, *, stepped: bool = False) -> NotFiniteError:
    """Say which update went wrong and with which settings."""
    run = training.run
    since = run.sync.get("since", 0)
    if stepped:
        left = "train_step has moved the parameters already."
    elif training.averaging is not None:
        left = f"The estimator holds the average of update {run.update - since}, the last one."
    else:
        left = f"The estimator holds the parameters of update {run.update}, the last finite ones."
    return NotFiniteError(
        f"The {what} at update {run.update + 1} (epoch {run.epoch + 1}) with batch size "
        f"{run.batch_size} and lr {training.lr():.4g}. {left} Lower lr, clip gradients with "
        "skorch's GradientNormClipping, or look for nan and inf in the data."
    )
