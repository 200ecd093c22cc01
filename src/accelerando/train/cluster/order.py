"""What every rank of a fit is told once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accelerando.batch_size import BatchSizePolicy
from accelerando.sync import Strategy


@dataclass
class Order:
    """Everything about a fit that stays as it is, sent to every rank once.

    Attributes
    ----------
    net : estimator
        A clone without callbacks and client.
    policy : BatchSizePolicy
        Decides batch sizes, on every rank alike.
    strategy : Strategy
        What ranks exchange, and when.
    feed : object with ``build(data)``
        How to read the training set from the data placed on the worker.
    valid : object with ``build(data)``, or None
        How to read the validation batches.
    weights : torch.Tensor or None
        Weights of the training rows.
    fit_params : dict
        Arguments of the module's ``forward``.
    whole : bool
        Never divide a rank's rows into micro-batches.
    seconds : float
        How long a rank may be silent beyond twenty usual updates.
    checkpoint_every : int or None
        Updates between two states sent to the driver.
    topic : str
        Of the progress events.
    callbacks : list of (name, callback)
        Those that act on gradients.
    """

    net: Any
    policy: BatchSizePolicy
    strategy: Strategy
    feed: Any
    valid: Any
    weights: torch.Tensor | None
    fit_params: dict[str, Any]
    whole: bool
    seconds: float
    checkpoint_every: int | None
    topic: str
    callbacks: list[tuple[str, Any]]
