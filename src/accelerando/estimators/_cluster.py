"""Training an estimator on a Dask cluster: what the driver hands over, and a rank's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.base import clone
from skorch.callbacks import BatchScoring, Callback, EpochScoring, LRScheduler, ProgressBar
from skorch.dataset import Dataset as SkorchDataset
from skorch.utils import TeeGenerator
from torch.utils.data import DataLoader, Subset

from accelerando._cluster.driver import placement
from accelerando._cluster.driver.run import ClusterTrainer
from accelerando._cluster.driver.run import cluster_trainer as run_on_cluster
from accelerando._cluster.driver.sizing import Limits
from accelerando._cluster.job import ClusterJob, RankModel
from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, Batch, Feed, leaves
from accelerando._engine.loop import Fit
from accelerando._engine.model import Model
from accelerando._engine.runtime.channels_last import settle
from accelerando._engine.runtime.process import Interrupt
from accelerando.estimators._data import forward_of, sample_rows
from accelerando.estimators._skorch import (
    CallbackHooks,
    SkorchModel,
    has_convolutions,
    in_memory,
    is_idle,
)
from accelerando.exceptions import UnsupportedError
from accelerando.sync import Averaging

# -- a rank's model -------------------------------------------------------------------------------


@dataclass
class NetBuilder:
    """Builds the model of a rank from a clone of the user's net; pickled to the workers.

    Attributes
    ----------
    net : estimator
        A clone without callbacks and client.
    callbacks : list of (str, callback)
        Those that act on gradients.
    fit_params : dict
        Further arguments of the module's ``forward``.
    """

    net: Any
    callbacks: list[tuple[str, Any]] = field(default_factory=list)
    fit_params: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> RankModel:
        """Initialize the net and return it as a rank's model."""
        self.net.initialize()
        self.net.callbacks_ = self.callbacks
        return RankNet(self.net, self.fit_params)


class RankNet:
    """A net on a rank.

    Parameters
    ----------
    net : estimator
        Initialized.
    fit_params : dict
        Further arguments of the module's ``forward``.
    """

    def __init__(self, net: Any, fit_params: Mapping[str, Any]) -> None:
        self.net = net
        self.fit_params = fit_params
        self.model: Model = SkorchModel(net, fit_params)
        self.device = torch.device(net.device or "cpu")

    def prepare(self, feed: Feed) -> None:
        """Give convolutions the faster memory format if the module accepts it."""
        net = self.net
        if net.channels_last is False or not has_convolutions(net.module_):
            return
        forward = forward_of(net, self.fit_params)
        settle(net.module_, net.channels_last, sample_rows(feed), forward)

    def evaluate(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return the loss and the predictions of a validation batch."""
        step = self.net.validation_step(batch, **self.fit_params)
        return step["loss"], step["y_pred"]

    def gradients_ready(self, batch: Batch) -> None:
        """Call the callbacks that act on gradients."""
        if self.net._callbacks_at("on_grad_computed"):
            named = TeeGenerator(self.net.get_all_learnable_params())
            self.net.notify(
                "on_grad_computed", named_parameters=named, batch=batch.data, training=True
            )


# -- the driver's side ----------------------------------------------------------------------------


@contextmanager
def cluster_trainer(
    net: Any, fit: Fit, datasets: Any, interrupt: Interrupt
) -> Iterator[ClusterTrainer]:
    """Train the epochs of a fit on the ranks of the net's cluster."""
    check_callbacks(net)
    hooks = fit.hooks
    assert isinstance(hooks, CallbackHooks)
    options = net.get_params_for("iterator_train")
    options.pop("batch_size", None)
    chunks = datasets[0] if isinstance(datasets[0], placement.Chunks) else None
    job = ClusterJob(
        client=net.client,
        fit=fit,
        builder=NetBuilder(_clone_for_ranks(net), gradient_callbacks(net), fit.spec.fit_params),
        feed=placement.plan_feed(fit.feed, options, net.iterator_train),
        validation=_plan_validation(net, datasets[1], fit.feed),
        content=placement.content_of(fit.feed, datasets[1]),
        owners=data_owners(datasets[0]) if isinstance(fit.feed, ArrayFeed) else [],
        chunks=chunks,
        limits=_limits(net, fit, chunks),
        worker_timeout=net.worker_timeout,
        interrupt=interrupt,
        progress=hooks.progress,
        log=net.world_log_,
        verbose=bool(net.verbose),
        add_records=lambda records: _add_batches(net, records),
        add_to_history=lambda values: net.history_[-1].update(values),  # noqa: PLW0108  of now
        save_checkpoint=net._write_checkpoint,
    )
    with run_on_cluster(job) as trainer:
        net._trainer_ = trainer
        try:
            yield trainer
        finally:
            net._trainer_ = None


def _add_batches(net: Any, records: Sequence[Mapping[str, float]]) -> None:
    """Append the batches of new updates to skorch's history."""
    net.history_[-1]["batches"].extend(
        {"train_loss": record["loss"], "train_batch_size": int(record["batch_size"])}
        for record in records
    )


def _clone_for_ranks(net: Any) -> Any:
    callbacks, net.callbacks = net.callbacks, None  # they stay here, and some cannot be cloned
    try:
        replica = clone(net)
    finally:
        net.callbacks = callbacks
    return replica.set_params(
        callbacks="disable",
        train_split=None,
        verbose=0,
        client=None,
        checkpoint=None,
        sync=None,  # one process that averages would be refused; the strategy is in the spec
    )


def data_owners(dataset: Any) -> list[Any]:
    """Return the user's objects: their data stay on a cluster while they exist."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, SkorchDataset):
        return leaves(dataset.X)  # y is often a copy that estimators make
    return [dataset]


def _limits(net: Any, fit: Fit, chunks: placement.Chunks | None) -> Limits:
    strategy = fit.spec.strategy
    averages = isinstance(strategy, Averaging)
    return Limits(
        examples_per_worker=net.examples_per_worker,
        min_workers=net.min_workers,
        max_workers=net.max_workers,
        averages=averages,
        replicas=strategy.ranks_wanted() if averages else None,  # type: ignore[attr-defined]
        min_rows=fit.spec.min_rows,
        chunks=None if chunks is None else max(1, sum(n > 0 for n in chunks.lengths)),
    )


def _plan_validation(net: Any, dataset: Any, feed: Feed) -> placement.ValidationPlan | None:
    """Return how a rank reads the validation set; None if only the driver can."""
    options = net.get_params_for("iterator_valid")
    rows = options.pop("batch_size", None)
    if isinstance(feed, ChunkFeed):
        return None
    if dataset is None or net.iterator_valid is not DataLoader or any(options.values()):
        return None
    batches = net.get_iterator(dataset, training=False)
    rows = batches.rows if hasattr(batches, "rows") else rows or batches.batch_size
    if not isinstance(feed, ArrayFeed):
        return placement.ValidationPlan(None, rows, len(dataset), in_arrays=False)
    arrays = in_memory(dataset)
    if arrays is None or not placement.shares_memory(arrays[0], feed.data):
        return None
    return placement.ValidationPlan(arrays[1], rows, len(dataset), in_arrays=True)


def chunks_of(net: Any, X: Any, y: Any) -> placement.Chunks:
    """Let the cluster compute the chunks of the Dask arrays `X` and `y`."""
    if net.client is None or net.data != "shard":
        raise UnsupportedError(
            "X is a Dask array. To train on its chunks where they are pass client= and "
            'data="shard"; to train on all of it pass X.compute() and y.compute().'
        )
    if net.train_split is not None and not hasattr(net.train_split, "func"):
        raise UnsupportedError(
            "A Dask array cannot be split here into training and validation rows. Pass "
            "train_split=None, or skorch.helper.predefined_split(Dataset(X_valid, y_valid))."
        )
    if not hasattr(y, "__dask_graph__") or not hasattr(X, "chunks") or not hasattr(y, "chunks"):
        raise UnsupportedError(
            f"With Dask, X and y are both dask.array arrays; got {type(X).__name__} and "
            f"{type(y).__name__}. dask.dataframe has to_dask_array(lengths=True)."
        )
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} rows and y has {len(y)}.")
    return placement.compute_chunks(net.client, X, y)


# -- callbacks ------------------------------------------------------------------------------------

_PER_BATCH = ("on_batch_begin", "on_batch_end", "on_grad_computed")


def _batch_hooks(callback: Any) -> list[str]:
    kind = type(callback)
    return [n for n in _PER_BATCH if not is_idle(getattr(kind, n), getattr(Callback, n))]


def gradient_callbacks(net: Any) -> list[tuple[str, Any]]:
    """Return the callbacks that act on gradients only: every rank calls its own copy.

    After the reduction gradients are the same on all ranks, so that clipping them on each rank is
    clipping them.
    """
    return [(name, cb) for name, cb in net.callbacks_ if _batch_hooks(cb) == ["on_grad_computed"]]


def check_callbacks(net: Any) -> None:
    """Refuse callbacks that need every training batch in this process."""
    for name, callback in net.callbacks_:
        hooks = _batch_hooks(callback)
        if not hooks or hooks == ["on_grad_computed"] or isinstance(callback, ProgressBar):
            continue
        remedy = "Do the work in on_epoch_end"
        if isinstance(callback, EpochScoring | BatchScoring):
            if not callback.on_train or not getattr(callback, "use_caching", True):
                continue  # validation batches do pass through this process
            remedy = "Pass use_caching=False to EpochScoring, or score in on_epoch_end"
        elif isinstance(callback, LRScheduler):
            if getattr(callback, "step_every", "epoch") != "batch":
                continue
            remedy = "Pass step_every='epoch', or let a batch-size policy do the damping"
        elif type(callback).__module__.startswith("skorch.callbacks"):
            continue
        raise UnsupportedError(
            f"The callback {name} ({type(callback).__name__}) acts at every batch "
            f"({', '.join(hooks)}), and with client= the batches are on the workers. {remedy}; "
            "what happened in every update is in updates_frame(). Or train in this process "
            "(client=None)."
        )
