"""What every rank of a fit is told once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.base import clone

from accelerando.batch_size import BatchSizePolicy
from accelerando.sync import Strategy
from accelerando.train.cluster.callbacks import on_ranks
from accelerando.train.cluster.place import plan_feed
from accelerando.train.loop import Training


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


def order_for(net: Any, training: Training, valid: Any, topic: str) -> Order:
    """Gather what every rank has to know.

    Parameters
    ----------
    net : estimator
        Of the user.
    training : Training
        Of the driver.
    valid : object with ``build(data)``, or None
        How to read the validation batches.
    topic : str
        Of the progress events.
    """
    callbacks, net.callbacks = net.callbacks, None  # they stay here, and some cannot be cloned
    try:
        replica = clone(net)
    finally:
        net.callbacks = callbacks
    replica.set_params(
        callbacks="disable",
        train_split=None,
        verbose=0,
        client=None,
        checkpoint=None,
        sync=None,
    )
    options = {k: v for k, v in net.get_params_for("iterator_train").items() if k != "batch_size"}
    return Order(
        net=replica,
        policy=training.policy,
        strategy=net.strategy_,
        feed=plan_feed(training.feed, options, net.iterator_train),
        valid=valid,
        weights=training.weights,
        fit_params=dict(training.fit_params),
        whole=training.micro.whole,
        seconds=net.rank_timeout,
        checkpoint_every=net.checkpoint_every if net.checkpoint is not None else None,
        topic=topic,
        callbacks=on_ranks(net),
    )
