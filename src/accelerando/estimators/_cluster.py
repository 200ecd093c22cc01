"""Training an estimator on a Dask cluster: what the driver hands over, and a rank's model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sklearn.base import clone
from skorch.callbacks import (
    LRScheduler,
)
from skorch.dataset import Dataset as SkorchDataset
from skorch.utils import TeeGenerator
from torch.utils.data import DataLoader, Subset

from accelerando._cluster.driver import placement
from accelerando._cluster.driver.run import ClusterTrainer
from accelerando._cluster.driver.run import cluster_trainer as run_on_cluster
from accelerando._cluster.driver.sizing import Limits
from accelerando._cluster.job import ClusterJob, RankModel
from accelerando._engine._torch import track_steps
from accelerando._engine.comm.communicator import UpdateResult
from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, Batch, Feed, leaves
from accelerando._engine.loop import Fit
from accelerando._engine.model import Components, Model
from accelerando._engine.runtime.channels_last import settle
from accelerando._engine.runtime.process import Interrupt
from accelerando.estimators._check_ranks import (
    check_callbacks,
    check_division,
    copies_for_ranks,
    rank_callbacks,
)
from accelerando.estimators._data import forward_of, sample_rows
from accelerando.estimators._skorch import (
    CallbackHooks,
    SkorchModel,
    has_convolutions,
    in_memory,
    module_of,
)
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
        Those that act in every update.
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
        self.net.history_.new_epoch()
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
        self.model: Model = make_model(net, fit_params)
        self.device = torch.device(net.device or "cpu")

    def adopt(self, components: Components) -> None:
        """Use other modules, criteria, optimizers, callbacks and attributes from now on."""
        values = vars(self.net)
        for parts in (components.modules, components.criteria, components.optimizers):
            values.update({name + "_": part for name, part in parts.items()})
        self.net.callbacks_ = [
            (name.removeprefix(_CALLBACK), extra)
            for name, extra in components.extras.items()
            if name.startswith(_CALLBACK)
        ]
        values.update(vars(components.extras["net"]) if "net" in components.extras else {})
        self.model.refresh()
        for optimizer in self.model.optimizers:
            track_steps(optimizer)

    def prepare(self, feed: Feed) -> None:
        """Give convolutions the faster memory format if the module accepts it."""
        net = self.net
        if net.channels_last is False or not has_convolutions(module_of(net)):
            return
        forward = forward_of(net, self.fit_params)
        settle(module_of(net), net.channels_last, sample_rows(feed), forward)

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

    def updated(self, batch: Batch, result: UpdateResult) -> None:
        """Let schedulers that step in every update take their step."""
        if self.net._callbacks_at("on_batch_end"):
            row = {"train_loss": result.loss, "train_batch_size": batch.size}
            self.net.history_[-1]["batches"] = [row]
            self.net.notify("on_batch_end", batch=batch.data, training=True, **result.outputs)


_CALLBACK = "callback "  # before the name of a callback


def make_model(net: Any, fit_params: Mapping[str, Any]) -> SkorchModel:
    """Return the net as a model whose description contains what else ranks use of it."""
    model = SkorchModel(net, fit_params)
    model.extras = lambda: _extras(net)
    model.refresh()
    return model


def _extras(net: Any) -> dict[str, Any]:
    found = {_CALLBACK + name: callback for name, callback in rank_callbacks(net)}
    ours = next(kind for kind in type(net).__mro__ if kind.__module__.startswith("accelerando."))
    if ours is not type(net):
        # What a user's get_loss or infer may read: attributes that no estimator of ours has.
        known = {*inspect.signature(ours).parameters, *_FITTED, "history"}
        known.update(name + "_" for name in (*net._modules, *net._criteria, *net._optimizers))
        own = {
            name: value
            for name, value in vars(net).items()
            if name not in known and "__" not in name and not name.startswith("_")
        }
        found["net"] = SimpleNamespace(**own)
    return found


_FITTED = (
    "callbacks_",
    "classes_inferred_",
    "cuda_dependent_attributes_",
    "history_",
    "init_context_",
    "initialized_",
    "prefixes_",
    "virtual_params_",
    "world_log_",
)


# -- the driver's side ----------------------------------------------------------------------------


@contextmanager
def cluster_trainer(
    net: Any, fit: Fit, datasets: Any, interrupt: Interrupt
) -> Iterator[ClusterTrainer]:
    """Train the epochs of a fit on the ranks of the net's cluster."""
    check_callbacks(net)
    check_division(net, fit)
    assert isinstance(fit.model, SkorchModel)
    fit.model.extras = lambda: _extras(net)
    hooks = fit.hooks
    assert isinstance(hooks, CallbackHooks)
    options = net.get_params_for("iterator_train")
    options.pop("batch_size", None)
    chunks = datasets[0] if isinstance(datasets[0], placement.Chunks) else None
    job = ClusterJob(
        client=net.client,
        fit=fit,
        builder=NetBuilder(_clone_for_ranks(net), copies_for_ranks(net), fit.spec.fit_params),
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
    events = [cb.event_name for _, cb in rank_callbacks(net) if isinstance(cb, LRScheduler)]
    events = [name for name in events if name is not None]
    net.history_[-1]["batches"].extend(
        {
            "train_loss": record["loss"],
            "train_batch_size": int(record["batch_size"]),
            **dict.fromkeys(events, record["lr"]),
        }
        for record in records
    )


def _clone_for_ranks(net: Any) -> Any:
    callbacks, net.callbacks = net.callbacks, None  # they stay here, and some cannot be cloned
    try:
        replica = clone(net)
    finally:
        net.callbacks = callbacks
    return replica.set_params(
        criterion=type(net.criterion_) if isinstance(net.criterion, str) else net.criterion,
        callbacks="disable",
        train_split=None,
        verbose=0,
        client=None,
        checkpoint=None,
        ema=None,  # the rank has the state, and with it the average
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
