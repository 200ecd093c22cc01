"""Sample weights and class weights, from what ``fit`` is given to one number per training row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils.class_weight import compute_sample_weight
from skorch.utils import to_numpy
from torch.utils.data import Subset

from accelerando.exceptions import UnsupportedError


def combine(sample_weight: Any, class_weight: Any, y: Any) -> Any:
    """Multiply sample weights by the weights of their classes, as scikit-learn's estimators do."""
    if class_weight is None:
        return sample_weight
    if y is None:
        raise ValueError("class_weight needs y, the classes of the examples; got y=None.")
    by_class = compute_sample_weight(class_weight, to_numpy(y))
    return by_class if sample_weight is None else np.asarray(sample_weight) * by_class


def training_weights(sample_weight: Any, n_given: int, dataset: Any) -> torch.Tensor:
    """Return the weights of the training rows, with a mean of one.

    With a mean of one the gradient of a batch stays what it was: a sum over rows divided by their
    number, and an estimate without bias of the gradient of the weighted loss.
    """
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_given,):
        raise ValueError(
            f"sample_weight must have one number per example: X has {n_given} examples, "
            f"sample_weight has shape {weights.shape}."
        )
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError("sample_weight must be finite and not negative.")
    weights = weights[_rows_of(dataset, n_given)]
    total = weights.sum()
    if total == 0:
        raise ValueError("sample_weight is zero for every training example.")
    return torch.as_tensor(weights * (len(weights) / total), dtype=torch.get_default_dtype())


def _rows_of(dataset: Any, n_given: int) -> Any:
    rows = np.arange(n_given)
    chain = []
    while isinstance(dataset, Subset):
        chain.append(np.asarray(dataset.indices))
        dataset = dataset.dataset
    for indices in reversed(chain):
        rows = rows[indices]
    if not hasattr(dataset, "__len__") or len(dataset) != n_given:
        raise UnsupportedError(
            "sample_weight needs to know which examples train_split left in the training set. Use "
            "skorch's ValidSplit, a train_split that returns torch.utils.data.Subset, or None."
        )
    return rows
