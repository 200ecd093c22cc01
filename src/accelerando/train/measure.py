"""Loss or gradient norm on the training set, for the policies that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from skorch.dataset import unpack_data

from accelerando.batch_size import Measure
from accelerando.exceptions import UnsupportedError
from accelerando.train.gradient import grad_norm
from accelerando.train.loss import mass
from accelerando.train.order import sample_rows

if TYPE_CHECKING:
    from accelerando.train.loop import Training

ROWS_AT_ONCE = 1024


def measure(training: Training, wanted: Measure) -> float:
    """Return the mean loss over the sampled rows, or the norm of its gradient.

    The model is in evaluation mode: dropout is off and BatchNorm's statistics stay as they are.
    """
    net, run = training.net, training.run
    n_examples = training.feed.n_examples
    if n_examples is None:
        raise UnsupportedError(
            f"{type(training.policy).__name__} measures on the training set before every few "
            "updates, which a stream cannot give. Use RadaDamp, which needs no extra pass, or a "
            "map-style Dataset."
        )
    drawn = sample_rows(run.seed, run.update, n_examples, wanted.fraction)
    rows = training.feed.share(drawn, training.world.part)
    at_once = min(ROWS_AT_ONCE, training.micro.fixed or ROWS_AT_ONCE)
    with_gradient = wanted.quantity == "grad_norm"
    criterion_sums = getattr(net.criterion_, "reduction", "mean") == "sum"

    net._set_training(False)
    net._zero_grad_optimizer()
    total, weight = 0.0, 0.0
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        X, y = unpack_data(training.feed.gather(some))
        share = 1.0 if criterion_sums else mass(net.criterion_, y, len(some))
        with torch.set_grad_enabled(with_gradient):
            loss = net.get_loss(net.infer(X, **training.fit_params), y, X=X, training=False)
            if with_gradient:
                (loss * share).backward()
        total += float(loss.detach()) * share
        weight += len(some) if criterion_sums else share
    total, weight = training.world.total(total, weight)
    weight = weight or 1.0
    if with_gradient:
        training.world.total_gradients(training.parameters)
        total = grad_norm(training.parameters)
        net._zero_grad_optimizer()
    return total / weight
