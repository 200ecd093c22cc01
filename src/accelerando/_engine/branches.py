"""Branches: short forks of a run that are compared, and of which nothing remains.

A fork trains on some rows with another batch size and learning rate. Afterwards parameters,
buffers, optimizers and random numbers are what they were, on all ranks alike.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accelerando._decisions import Measure, Plan, ceil
from accelerando._engine import step as steps
from accelerando._engine.measure import measure_on_training_set
from accelerando._engine.runtime.process import get_rng, set_rng
from accelerando.exceptions import NotFiniteError, UnsupportedError
from accelerando.sync import Averaging

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit

_OTHER_EPOCHS = 2**31  # added to the update: the rows of a fork have another order
_ROWS = 1024  # on which losses are compared, at least


def branch_gap(fit: Fit, measure: Measure) -> float:
    """Return by which share the loss after a fork with a larger batch is larger than without it.

    It is infinite if the larger batch does not exist, or if its fork diverges.
    """
    state, comm, n_examples = fit.state, fit.comm, fit.feed.n_examples
    if n_examples is None or isinstance(fit.spec.strategy, Averaging) or fit.spec.compressor:
        raise UnsupportedError(
            "CriticalBatchSize trains short forks of the run, which needs a training set with a "
            "length, and gradients that are averaged without compression. Use a map-style data "
            "set, sync=None and compression=None, or NoiseScale."
        )
    present = max(1, state.batch_size // comm.batches_per_update)
    large = ceil(present * measure.growth)
    most = fit.control.max_batch_size
    if large * comm.batches_per_update > n_examples or (most is not None and large > most):
        return math.inf
    at_once = large * comm.batches_per_update
    rows = min(n_examples, at_once * max(1, ceil(measure.fraction * n_examples / at_once)))
    sample = Measure("loss", min(1.0, max(measure.fraction, _ROWS / n_examples)))
    losses = []
    for size, scale in ((present, 1.0), (large, measure.growth**measure.power)):
        with _fork(fit):
            try:
                _train(fit, size, state.lr_scale * scale, rows)
                losses.append(measure_on_training_set(fit, sample))
            except NotFiniteError:
                losses.append(math.inf)
    usual, other = losses
    if not (math.isfinite(usual) and math.isfinite(other)):
        return math.inf
    return (other - usual) / max(abs(usual), 1e-12)


def _train(fit: Fit, size: int, lr_scale: float, rows: int) -> None:
    """Train on `rows` rows in batches of `size`; they are the same ones for all sizes."""
    state, comm = fit.state, fit.comm
    number = _OTHER_EPOCHS + state.position.update
    batches = fit.feed.epoch(state.seed, number, 0, comm.shard)
    at_once = size * comm.batches_per_update
    plan = Plan(at_once, size, lr_scale, state.settings, state.memories.policies)
    done = 0
    while done < rows:
        batch = batches.take(min(at_once, rows - done), fit.min_rows)
        if batch is None:
            return
        steps.update(fit, plan, batch)
        done += batch.size


@contextmanager
def _fork(fit: Fit) -> Iterator[None]:
    """Put back what is trained inside."""
    components, generators = fit.state.components, get_rng()
    before = copy.deepcopy(components.state_dict())
    try:
        yield
    finally:
        components.load_state_dict(before, None, origin="The fork")
        for parameter in fit.model.parameters:
            parameter.grad = None
        set_rng(generators)
