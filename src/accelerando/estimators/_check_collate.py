"""Check that the user's collate function does not make rows depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from accelerando._engine.data.feed import Feed, leaves, only_tensors
from accelerando._engine.loop import Fit
from accelerando._engine.runtime.process import Draws
from accelerando._engine.trial import Where
from accelerando.estimators._check_ranks import rows_of, some_rows
from accelerando.exceptions import UnsupportedError

_PADDED_ROWS = 32


def check_collate(feed: Feed) -> None:
    """Refuse a collate function that mixes rows: a rank would mix its own ones only."""
    if feed.n_examples is None or feed.n_examples < 2:
        return
    rows = np.arange(min(8, feed.n_examples))
    found = []
    for some in (rows, rows[::2], rows[1::2]):
        with Draws(0)():
            found.append(feed.gather(some))
    if not only_tensors(found):
        return  # rows that cannot be distinguished
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


def look_at_padding(net: Any, fit: Fit, look: Callable[..., Where | None]) -> Where | None:
    """Return where short rows differ if no long ones are in their batch, or rows are no tensors."""
    rows = some_rows(fit.feed, _PADDED_ROWS)
    if len(rows) < 4:
        return None
    sizes = [_size_of(fit.feed.gather(rows[n : n + 1])) for n in range(len(rows))]
    order = rows[np.argsort(sizes, kind="stable")]
    X, y = rows_of(net, fit, order)
    same_size = min(sizes) == max(sizes)
    if same_size and only_tensors([X, y]):
        return None
    cut = (len(order) * 5 // 8) | 1
    parts = [(*rows_of(net, fit, some), len(some)) for some in (order[:cut], order[cut:])]
    where = look(X, y, parts=parts)
    return where if where is None or same_size else "padding"


def _size_of(batch: Any) -> int:
    """Return the number of elements of a batch."""
    return sum(
        leaf.numel() if isinstance(leaf, torch.Tensor) else sum(map(len, leaf[:1]))
        for leaf in leaves(batch)
        if isinstance(leaf, torch.Tensor | PackedSequence)
    )
