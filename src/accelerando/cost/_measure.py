"""Measurement of the duration of an update, by a short training run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone

from accelerando._sklearn import count_rows, take_rows
from accelerando._validation import check, check_integer, is_integer
from accelerando.cost._fit import fit_line

SKIP = 3  # updates that are not measured: the first updates of a process are slow


class Measured(NamedTuple):
    """The result of :func:`measure`; pass it on as ``plan(..., **measured._asdict())``.

    Attributes
    ----------
    seconds_per_example : float
        The duration of forward and backward pass of one row on one worker.
    overhead : float
        The additional duration of every update.
    parameters : int
        The number of trained numbers.
    """

    seconds_per_example: float
    overhead: float
    parameters: int


def measure(
    net: Any,
    X: Any,
    y: Any = None,
    *,
    batch_sizes: tuple[int, ...] | None = None,
    updates: int = 20,
) -> Measured:
    """Train a copy of `net` for a few updates and measure their duration.

    Two batch sizes separate the time per example from the time per update. Measure on a machine
    like those that will be rented, with as many threads as a worker will have there. `net` is not
    changed. The copy trains in this process, without validation, client and callbacks.

    Parameters
    ----------
    net : NeuralNet
        An estimator of accelerando, fitted or not.
    X, y : array-like
        The training data; only the first rows are used.
    batch_sizes : tuple of int, optional
        Numbers of rows per update. Default: ``examples_per_worker`` of `net` and a quarter of it,
        but at most the rows of `X`.
    updates : int
        Updates per size, in addition to three that are not measured.

    Returns
    -------
    Measured
        A named tuple of ``seconds_per_example``, ``overhead`` (both in seconds) and ``parameters``,
        the number of trained numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from torch import nn
    >>> from accelerando import NeuralNetRegressor
    >>> from accelerando.cost import measure, plan
    >>> net = NeuralNetRegressor(nn.Linear(8, 1), verbose=0)
    >>> X, y = np.ones((64, 8), "float32"), np.ones((64, 1), "float32")
    >>> found = measure(net, X, y)
    >>> found.parameters
    9
    >>> plan(64, n_examples=64_000, max_epochs=2, **found._asdict()).updates
    2000
    """
    check_integer("measure", "updates", updates)
    n = count_rows(X)
    largest = min(int(net.examples_per_worker), n)
    sizes = batch_sizes or tuple(sorted({max(1, largest // 4), largest}))
    for size in sizes:
        allowed = f"integers from 1 to {n}, the number of rows of X"
        check(is_integer(size, 1) and size <= n, "measure", "batch_sizes", allowed, size)
    copy = clone(net)
    copy.set_params(
        client=None,
        checkpoint=None,
        callbacks=None,
        train_split=None,
        verbose=0,
        max_batch_size=None,
    )
    rows, seconds = [], []
    for size in sizes:
        frame = _train(copy, X, y, size, updates + SKIP).iloc[SKIP - 1 :]
        took = np.diff(frame["seconds"])
        rows += [size] * len(took)
        seconds += took.tolist()
    parameters = sum(p.numel() for _, p in copy.get_all_learnable_params())
    return Measured(*fit_line(np.array(rows), np.array(seconds)), parameters)


def _train(net: Any, X: Any, y: Any, size: int, updates: int) -> pd.DataFrame:
    """Make at least `updates` updates of one size; every batch is full."""
    per_epoch = max(1, min(count_rows(X) // size, updates))
    few = np.arange(per_epoch * size)
    X, y = _rows(X, few), None if y is None else _rows(y, few)
    net.set_params(batch_size=size, max_epochs=-(-updates // per_epoch))
    frame: pd.DataFrame = net.fit(X, y).updates_frame()
    return frame


def _rows(data: Any, rows: np.ndarray) -> Any:
    if isinstance(data, dict):
        return {key: _rows(value, rows) for key, value in data.items()}
    return data[: len(rows)] if hasattr(data, "shape") else take_rows(data, rows)
