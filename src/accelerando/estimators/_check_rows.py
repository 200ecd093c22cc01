"""Rows that depend on each other: what several ranks could not compute as one process does."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from skorch.utils import to_tensor
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from accelerando._engine._torch import batch_norm_class
from accelerando._engine.coupling import (
    find_coupling,
    is_known_to_be_by_row,
    rows_to_compare,
)
from accelerando._engine.data.feed import ArrayFeed, Feed, leaves, only_tensors, unpack
from accelerando._engine.division import refuse_on_ranks
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import check_sparse, is_mean_over_rows, may_broadcast
from accelerando._engine.runtime.process import Draws
from accelerando._engine.trial import Where
from accelerando.estimators._skorch import criterion_of, has_custom_loss, module_of
from accelerando.exceptions import UnsupportedError
from accelerando.sync import Averaging

_PADDED_ROWS = 32
GATHERS = 'couples_rows="gather" computes the loss of a whole batch on every rank'


def check_division(net: Any, fit: Fit) -> None:
    """Refuse what several ranks could not compute as one process does.

    Parameters
    ----------
    net : estimator
        With a client.
    fit : Fit
        The driver's fit. If it has no rows, ranks look at those of their first update.
    """
    check_sparse(fit.model.module, fit.model.optimizers)
    _check_synchronized(net, fit.model.module)
    gathers = net.couples_rows == "gather"
    if gathers:
        _check_measured(fit)
    if net.couples_rows is False or isinstance(fit.spec.strategy, Averaging):
        return  # ranks that average have a batch each
    if net.max_workers == 1:
        return
    _check_layers(fit.model.module)
    _check_collate(fit.feed)
    separable = is_mean_over_rows(criterion_of(net)) and not has_custom_loss(net)
    by_row = is_known_to_be_by_row(module_of(net)) and not may_broadcast(criterion_of(net))
    if separable and by_row and getattr(fit.feed, "collate", None) is None:
        return
    if fit.feed.n_examples is None or getattr(fit.feed, "chunks", None) == {}:
        fit.spec = dataclasses.replace(fit.spec, probes=True)
        return
    look = functools.partial(find_coupling, fit.model, sums=fit.spec.sums, repeated=False)
    X, y = _rows_of(net, fit, some_rows(fit.feed, rows_to_compare(fit.model)))
    usual = net.batch_size if isinstance(net.batch_size, int) else None
    where = look(X, y, batch_size=usual)
    if where is None and getattr(fit.feed, "collate", None) is not None:
        where = _look_at_padding(net, fit, look)
    if where is not None:
        refuse_on_ranks(where, gathers=gathers)


def _rows_of(net: Any, fit: Fit, rows: Any) -> Any:
    """Return rows as a batch that a rank would make of them; its collate function draws zeros."""
    with Draws(0)():
        data = fit.feed.gather(rows)
    X, y = unpack(data)
    return to_tensor(X, device=net.device), to_tensor(y, device=net.device)


def _look_at_padding(net: Any, fit: Fit, look: Callable[..., Where | None]) -> Where | None:
    """Return where short rows differ if no long ones are in their batch, or rows are no tensors."""
    rows = some_rows(fit.feed, _PADDED_ROWS)
    if len(rows) < 4:
        return None
    sizes = [_size_of(fit.feed.gather(rows[n : n + 1])) for n in range(len(rows))]
    order = rows[np.argsort(sizes, kind="stable")]
    X, y = _rows_of(net, fit, order)
    same_size = min(sizes) == max(sizes)
    if same_size and only_tensors([X, y]):
        return None
    cut = (len(order) * 5 // 8) | 1
    parts = [(*_rows_of(net, fit, some), len(some)) for some in (order[:cut], order[cut:])]
    where = look(X, y, parts=parts)
    return where if where is None or same_size else "padding"


def _size_of(batch: Any) -> int:
    """Return the number of elements of a batch."""
    return sum(
        leaf.numel() if isinstance(leaf, torch.Tensor) else sum(map(len, leaf[:1]))
        for leaf in leaves(batch)
        if isinstance(leaf, torch.Tensor | PackedSequence)
    )


def _check_synchronized(net: Any, module: nn.Module) -> None:
    whole = net.compile and net.get_params_for("compile").get("fullgraph")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise UnsupportedError(
                f"The layer {name!r} is a SyncBatchNorm, which needs a process group of its own. "
                "Use nn.BatchNorm1d, 2d or 3d: ranks share its statistics without it."
            )
        if whole and isinstance(layer, batch_norm_class()):
            raise UnsupportedError(
                f"compile__fullgraph=True leaves no room for the messages in which ranks share the "
                f"statistics of {name.removeprefix('_orig_mod.')!r}. Leave it out."
            )


def _check_layers(module: nn.Module) -> None:
    """Refuse layers that ranks cannot keep equal."""
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            raise UnsupportedError(
                f"The layer {name!r} has max_norm={layer.max_norm}: it shortens the rows that it "
                "looks up, and every rank looks up others. Leave max_norm out; or train in one "
                "process (client=None) or on one rank (max_workers=1)."
            )


def _check_collate(feed: Feed) -> None:
    """Refuse a collate function that mixes rows: a rank would mix its own ones only."""
    if getattr(feed, "collate", None) is None or feed.n_examples is None or feed.n_examples < 2:
        return
    rows = np.arange(min(8, feed.n_examples))
    found = []
    for some in (rows, rows[::2], rows[1::2]):
        with Draws(0)():
            found.append(feed.gather(some))
    if not only_tensors(found):
        return  # rows that cannot be told apart
    whole, first, second = (leaves(batch) for batch in found)
    for all_rows, some, others in zip(whole, first, second, strict=True):
        if not (_same_rows(all_rows[::2], some) and _same_rows(all_rows[1::2], others)):
            raise UnsupportedError(
                "iterator_train__collate_fn makes of a row something that depends on the other "
                "rows of the batch (MixUp, one random number per row), and every rank calls it "
                "with its own rows: the result would depend on the number of ranks. Change single "
                "rows in the Dataset's __getitem__, mix rows in a loss "
                'with couples_rows="gather"; or train on one rank (max_workers=1). If you know '
                "better, couples_rows=False trains without this check."
            )


def _same_rows(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if rows are the same but for padding, which is the same number everywhere."""
    if one.dim() != other.dim() or len(one) != len(other):
        return False
    common = tuple(slice(0, length) for length in other.shape)
    if one[common].shape != other.shape or not torch.equal(one[common], other):
        return False
    rest = torch.ones_like(one, dtype=torch.bool)
    rest[common] = False
    return bool((one[rest] == one[rest][:1]).all())


def some_rows(feed: Feed, number: int) -> Any:
    """Return rows from all over the training set, several of a class if classes are at hand.

    Losses that compare rows of one class show nothing if there is one row of each.
    """
    n_examples = feed.n_examples
    assert n_examples is not None
    number = min(number, n_examples)
    number -= number % 8 if number > 8 else 0  # a module may take rows in pairs
    spread = np.linspace(0, n_examples - 1, number).round().astype(np.int64)
    if not isinstance(feed, ArrayFeed) or not isinstance(feed.data[1], torch.Tensor):
        return spread
    targets = feed.data[1]
    if targets.dim() != 1 or targets.is_floating_point():
        return spread
    classes: Any = targets.cpu().numpy()[... if feed.subset is None else feed.subset]
    common = [np.flatnonzero(classes == one)[:4] for one in np.unique(classes[spread])[:4]]
    # Two of each class at either end, so that every part has pairs.
    pairs = [rows[half::2] for half in (0, 1) for rows in common]
    middle = [row for row in spread if not any(row in rows for rows in common)]
    middle = middle[: number - sum(map(len, pairs))]
    return np.concatenate([*pairs[: len(common)], middle, *pairs[len(common) :]]).astype(np.int64)


def _check_measured(fit: Fit) -> None:
    """Refuse what looks at single rows or at the rows of a rank."""
    for policy in fit.control.policies:
        if policy.measures(0) is not None:
            raise UnsupportedError(
                f"{GATHERS}, and {type(policy).__name__} measures on the training set part by "
                "part. Use RadaDamp, which needs no extra pass."
            )
    for monitor in fit.control.monitors:
        if monitor.looks_at_parts:
            raise UnsupportedError(
                f"{GATHERS}, and {type(monitor).__name__} compares the gradients of parts of a "
                "batch. Leave the monitor or the policy that needs it out."
            )
