"""Loss or gradient norm on the training set, for the policies that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from accelerando._decisions import Measure
from accelerando._engine.data.feed import Rows, unpack
from accelerando._engine.micro_batch import mass, weighted_loss
from accelerando._engine.step import grad_norm
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit

ROWS_AT_ONCE = 1024


def sample_rows(seed: int, update: int, n: int, fraction: float) -> Rows:
    """Return the sorted rows on which a policy's measurement before `update` is made."""
    if fraction >= 1:
        return np.arange(n)
    size = max(1, round(fraction * n))
    # The third number separates these draws from those of epoch_order.
    drawn = np.random.default_rng([seed, update, 1]).choice(n, size, replace=False)
    return np.sort(drawn)


def measure_on_training_set(fit: Fit, measure: Measure) -> float:
    """Return the mean loss over the sampled rows, the norm of its gradient, or a gap of branches.

    With ``sample_weight`` or ``class_weight`` it is the weighted loss, the one that is trained.

    The model is in evaluation mode: dropout is off and the statistics of BatchNorm do not change.

    Parameters
    ----------
    fit : Fit
        With the model and the data.
    measure : Measure
        Which quantity, and on which fraction of the rows.
    """
    if measure.quantity == "branch_gap":
        from accelerando._engine.branches import branch_gap

        return branch_gap(fit, measure)
    model, state, comm = fit.model, fit.state, fit.comm
    n_examples = fit.feed.n_examples
    if n_examples is None:
        asking = [p for p in fit.control.policies if p.measures(state.position.update)]
        raise UnsupportedError(
            f"{type(asking[0]).__name__} measures on the training set before every few updates, "
            "which a stream cannot provide. Use RadaDamp, which needs no extra pass, or a "
            "map-style Dataset."
        )
    drawn = sample_rows(state.seed, state.position.update, n_examples, measure.fraction)
    rows = fit.feed.share(drawn, comm.shard)
    at_once = min(ROWS_AT_ONCE, state.micro_batch.fixed or ROWS_AT_ONCE)
    with_gradient = measure.quantity == "grad_norm"

    model.train(False)
    _zero_gradients(model.parameters)
    total, weight = 0.0, 0.0
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        X, y = unpack(fit.feed.gather(some))
        share = 1.0 if fit.spec.sums else mass(model.criterion, y, len(some))
        with torch.set_grad_enabled(with_gradient):
            loss = _loss(fit, X, y, some)
            if with_gradient:
                (loss * share).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach()) * share
        weight += len(some) if fit.spec.sums else share
    total, weight = comm.sum(total, weight)
    weight = weight or 1.0
    if with_gradient:
        comm.sum_gradients(model.parameters)
        total = grad_norm(model.parameters)
        _zero_gradients(model.parameters)
    return total / weight


def _loss(fit: Fit, X: Any, y: Any, rows: Rows) -> torch.Tensor:
    """Return the loss of some rows, weighted as that of training is."""
    model = fit.model
    y_pred = model.forward(X, model.module)
    if fit.spec.weights is None:
        return model.loss(y_pred, y, X, training=False)
    weights = fit.spec.weights[torch.from_numpy(rows)]
    return weighted_loss(
        model.criterion, lambda: model.loss(y_pred, y, X, training=False), y, weights, len(rows)
    )


def _zero_gradients(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None
