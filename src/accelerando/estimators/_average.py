"""The average of the weights (``ema=``) in an estimator: when it begins, and where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from accelerando._engine.ema import WeightAverage
from accelerando.estimators._skorch import components_of


def prepare_average(net: Any) -> None:
    """Begin, continue or forget the average of the weights, before training."""
    state = net._state_
    if state.ema is not None:
        state.ema.check_hidden("Training")
    if net.ema is None:
        state.ema = None
    elif state.ema is None:
        state.ema = WeightAverage(net.ema)
    else:
        state.ema.decay = float(net.ema)


def averaged(net: Any) -> AbstractContextManager[None]:
    """Let the modules of a net hold the average inside; nothing if there is none yet."""
    state = getattr(net, "_state_", None)
    if state is None or state.ema is None or not state.ema.updates:
        return nullcontext()
    shown: AbstractContextManager[None] = state.ema.shown(components_of(net))
    return shown


def averaged_outputs(net: Any, outputs: Iterator[Any]) -> Iterator[Any]:
    """Yield outputs, each computed with the average; in between, the module has its own weights."""
    nothing = object()
    while True:
        with averaged(net):
            output = next(outputs, nothing)
        if output is nothing:
            return
        yield output


def averaged_step(net: Any) -> Any:
    """Return the net's validation step, with the average."""

    def step(batch: Any, **fit_params: Any) -> Any:
        with averaged(net):
            return net.validation_step(batch, **fit_params)

    return step
