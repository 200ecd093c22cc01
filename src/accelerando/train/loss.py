"""How the loss of a batch is made of the losses of its parts.

The loss of a batch is Σ mᵢ Lᵢ / Σ mᵢ over its micro-batches (and, on a cluster, ranks), where Lᵢ is
what the criterion says about part i and mᵢ is that part's *mass*: its number of rows, or, for a
classification loss with class weights or ignored targets, what that loss divides by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accelerando.exceptions import UnsupportedError

_BY_TARGET = (nn.CrossEntropyLoss, nn.NLLLoss)
_BY_ROW = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.GaussianNLLLoss,
    nn.SoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.MultiMarginLoss,
    nn.MultiLabelMarginLoss,
)


def is_mean_over_rows(criterion: Any) -> bool:
    """Tell whether the loss of a batch is known to be a (weighted) mean or a sum over its rows."""
    known = isinstance(criterion, _BY_TARGET + _BY_ROW)
    return known and getattr(criterion, "reduction", None) in ("mean", "sum")


def mass(criterion: Any, y: Any, rows: int) -> float:
    """Return the mass of one part of a batch."""
    if not isinstance(criterion, _BY_TARGET) or criterion.reduction != "mean":
        return float(rows)
    if not isinstance(y, torch.Tensor) or y.is_floating_point():
        return float(rows)  # class probabilities as targets: PyTorch divides by the rows
    counted = y != criterion.ignore_index
    weight = criterion.weight
    if weight is None:
        return float(counted.sum())
    target = torch.where(counted, y, 0).to(weight.device)
    return float((weight[target] * counted.to(weight.device)).sum())


def every_row_counts(criterion: Any, y: Any) -> bool:
    """Tell whether the mass of any part of a data set with targets `y` is its number of rows."""
    if getattr(criterion, "reduction", "mean") == "sum":
        return False
    if not isinstance(criterion, _BY_TARGET):
        return True
    if not isinstance(y, torch.Tensor) or criterion.weight is not None:
        return False
    return y.is_floating_point() or not bool((y == criterion.ignore_index).any())


def share_of(criterion: Any, y: Any, rows: int, whole: float) -> float:
    """Return the factor of one part's loss in the loss of a batch with mass `whole`."""
    if getattr(criterion, "reduction", "mean") == "sum":
        return 1.0
    return mass(criterion, y, rows) / whole if whole else 1.0


def check_weightable(criterion: Any) -> None:
    """Raise if the losses of single examples cannot be had from the criterion."""
    if getattr(criterion, "reduction", None) not in ("mean", "sum"):
        raise UnsupportedError(
            f"sample_weight and class_weight need the loss of each example, and "
            f"{type(criterion).__name__} has no 'reduction' parameter to ask for it. Use a loss of "
            "torch.nn with reduction='mean', or weigh the examples in your own criterion."
        )


@contextmanager
def _each(criterion: Any) -> Iterator[None]:
    reduction = criterion.reduction
    criterion.reduction = "none"
    try:
        yield
    finally:
        criterion.reduction = reduction


def weighted_loss(
    net: Any, y_pred: Any, y: Any, X: Any, weights: torch.Tensor, rows: int
) -> torch.Tensor:
    """Return Σ wᵢ ℓᵢ / mass for weights whose mean over the training set is one."""
    criterion = net.criterion_
    total = 1.0 if criterion.reduction == "sum" else mass(criterion, y, rows) or 1.0
    with _each(criterion):
        losses = net.get_loss(y_pred, y, X=X, training=True)
    if losses.dim() == 0 or losses.shape[0] != rows:
        raise UnsupportedError(
            f"sample_weight needs one loss per example: {type(criterion).__name__} gave a tensor "
            f"of shape {tuple(losses.shape)} for {rows} examples."
        )
    per_row = losses
    if losses.dim() > 1:
        flat = losses.flatten(1)
        per_row = flat.sum(1) if criterion.reduction == "sum" or total != rows else flat.mean(1)
    weighted: torch.Tensor = (per_row * weights.to(per_row)).sum() / total
    return weighted
