"""Training an estimator on a Dask cluster: what the driver hands over, and a rank's model."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import cloudpickle
import torch
from skorch.callbacks import LRScheduler
from skorch.dataset import Dataset as SkorchDataset
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Subset

from accelerando._cluster.driver import placement
from accelerando._cluster.driver.chunks import Chunks
from accelerando._cluster.driver.collect import describe_data
from accelerando._cluster.driver.run import ClusterTrainer
from accelerando._cluster.driver.run import cluster_trainer as run_on_cluster
from accelerando._cluster.driver.sizing import Limits
from accelerando._cluster.job import ClusterJob, RankModel
from accelerando._engine._torch import track_steps
from accelerando._engine.comm.communicator import UpdateResult
from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, Batch, Feed, leaves
from accelerando._engine.loop import Fit
from accelerando._engine.model import Components, Model, class_attributes
from accelerando._engine.runtime.channels_last import settle
from accelerando._engine.runtime.process import Interrupt
from accelerando._engine.state import TrainState
from accelerando.estimators._base import SKLEARN_CALLBACKS, cannot_copy
from accelerando.estimators._check_ranks import (
    check_callbacks,
    check_division,
    copies_for_ranks,
    needs_model,
    rank_callbacks,
)
from accelerando.estimators._data import (
    forward_of,
    notify_gradients,
    sample_rows,
    settle_lazy,
)
from accelerando.estimators._persist import capture_callbacks, learning_rates
from accelerando.estimators._rank_view import EpochRows, OwnRows, RankView
from accelerando.estimators._skorch import (
    CallbackHooks,
    SkorchModel,
    has_convolutions,
    in_memory,
    last_row,
    module_of,
)
from accelerando.exceptions import UnsupportedError
from accelerando.sync import Averaging

# -- a rank's model -------------------------------------------------------------------------------


@dataclass
class NetBuilder:
    """Builds the model of a rank from the settings of the user's net; pickled to the workers.

    Attributes
    ----------
    net : bytes
        The pickled class and settings of a net that is not fitted.
    callbacks : list of (str, callback)
        Those that act in every update.
    fit_params : dict
        Further arguments of the module's ``forward``.
    """

    net: bytes
    callbacks: list[tuple[str, Any]] = field(default_factory=list)
    fit_params: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> RankModel:
        """Initialize the net and return it as a rank's model."""
        kind, settings = cloudpickle.loads(self.net)
        net = kind.__new__(kind)
        vars(net).update(settings)
        net.initialize()
        net.callbacks_ = self.callbacks
        net.history_.new_epoch()
        return RankNet(net, self.fit_params)


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
        self._view: RankView | None = None
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
        if "net" in components.extras:
            self._view = self._view or RankView(self.net)
            self._view.adopt(vars(components.extras["net"]))
        self.model.refresh()
        if self._view is not None:
            self._view.note(vars(self.model.components.extras["net"]))
        for optimizer in self.model.optimizers:
            track_steps(optimizer)

    def prepare(self, feed: Feed) -> None:
        """Give lazy layers their shapes, and convolutions the faster memory format."""
        net = self.net
        module = module_of(net)
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            settle_lazy(net, feed, self.fit_params, seed=0)  # the driver's parameters replace these
            self.model.refresh()
        if net.channels_last is False or not has_convolutions(module):
            return
        forward = forward_of(net, self.fit_params)
        settle(module_of(net), net.channels_last, sample_rows(feed), forward)

    def evaluate(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return the loss and the predictions of a validation batch."""
        step = self.net.validation_step(batch, **self.fit_params)
        return step["loss"], step["y_pred"]

    def begin_update(self, state: TrainState) -> None:
        """Let the user's code find position and history as it does in the driver's process."""
        self.net._state_ = state
        if self._view is not None:
            self._view.begin_update(state)

    def gradients_ready(self, batch: Batch, state: TrainState, *, alone: bool) -> None:
        """Call the callbacks that act on gradients; what they draw is the same on all ranks."""
        if self.net._callbacks_at("on_grad_computed"):
            shown = batch if alone else batch._replace(data=OwnRows())
            notify_gradients(self.net, shown, state.seed, state.position.update)

    def updated(self, batch: Batch, result: UpdateResult) -> None:
        """Let schedulers that step in every update take their step."""
        rows, steps = self.net.history_[-1]["batches"], self.net._callbacks_at("on_batch_end")
        if rows or steps:
            rows[-1:] = [{"train_loss": result.loss, "train_batch_size": batch.size}]
        if steps:
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
    if ours is not type(net) or found:
        # What a user's code may read there: attributes that no estimator of ours has.
        known = {*inspect.signature(ours).parameters, *_FITTED, "history"}
        known.update(name + "_" for name in (*net._modules, *net._criteria, *net._optimizers))
        own = {
            name: value
            for name, value in {**class_attributes(type(net)), **vars(net)}.items()
            if name not in known and "__" not in name and not name.startswith("_")
        }
        rows = [{k: v for k, v in row.items() if k != "batches"} for row in net.history_]
        found["net"] = SimpleNamespace(**own, history_rows=rows, history_open=EpochRows.of(net))
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
    given = net.get_params_for("iterator_train")
    options = {k: v for k, v in given.items() if k != "batch_size" or v is None}
    chunks = datasets[0] if isinstance(datasets[0], Chunks) else None
    validation = _plan_validation(net, datasets[1], fit.feed)
    evaluates = datasets[1] is not None and validation is None
    position = fit.state.position
    earlier = len(net.history_) - position.epoch - position.epoch_open
    job = ClusterJob(
        client=net.client,
        fit=fit,
        builder=NetBuilder(_settings_for_ranks(net), copies_for_ranks(net), fit.spec.fit_params),
        feed=placement.plan_feed(fit.feed, options, net.iterator_train),
        validation=validation,
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
        needs_model=lambda: evaluates or needs_model(net, fit),
        capture=lambda: copy.deepcopy((*capture_callbacks(net), learning_rates(net))),
        forget=lambda known, memories: _forget(net, earlier, known, memories),
        checkpoint=None if net.checkpoint is None else str(net.checkpoint),
        check=_checking(net, fit, datasets[0]),
    )
    with run_on_cluster(job) as trainer:
        net._trainer_ = trainer
        try:
            yield trainer
        except BaseException as error:
            trainer.settle(error)
            raise
        else:
            trainer.settle()
        finally:
            net._trainer_ = None


def _forget(net: Any, earlier: int, known: int, memories: Any) -> None:
    """Drop the epochs of the history that were lost, and what is lost of the current one."""
    position = net._state_.position
    del net.history_[earlier + position.epoch + position.epoch_open :]
    if position.epoch_open:
        row = last_row(net.history_)
        net.history_[-1:] = [{"epoch": row["epoch"], "batches": row["batches"][:known]}]
    net._resume_ = None if memories is None else (*memories, "captured here")


def _checking(net: Any, fit: Fit, dataset: Any) -> Callable[[bool], None]:
    """Return what looks at the callbacks, the model and the data before each epoch."""
    sent = describe_data(dataset)

    def check(changed: bool) -> None:
        check_callbacks(net)  # one may have been appended
        if changed:
            check_division(net, fit)
        now = describe_data(dataset)
        others = [name for name in sent.keys() & now.keys() if sent[name] != now[name]]
        if others:
            raise UnsupportedError(
                f"Somebody has changed {', '.join(sorted(others)[:5])} during the fit, and ranks "
                "have the data as they were when it began. Call partial_fit once for each stage of "
                "the data (max_epochs epochs each), or train in this process (client=None)."
            )

    return check


def known_step(net: Any, results: Sequence[tuple[torch.Tensor, Any]]) -> Any:
    """Return a validation step that looks up what ranks have computed."""
    known = iter(results)

    def look_up(batch: Any, **fit_params: Any) -> dict[str, Any]:
        net._set_training(False)  # as if the batch had been evaluated here
        loss, y_pred = next(known)
        return {"loss": loss, "y_pred": y_pred}

    return look_up


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


def _settings_for_ranks(net: Any) -> bytes:
    """Return the class of a net and its settings, without what is fitted, pickled.

    A clone would copy the user's module once more, and callbacks that stay here.
    """
    here = ("callbacks__", "_modules", "_criteria", "_optimizers", *SKLEARN_CALLBACKS)
    settings = {
        name: value
        for name, value in vars(net).items()
        if not name.endswith("_") and not name.startswith(here)
    }
    settings.update(
        history_=None,
        initialized_=False,
        virtual_params_={},
        criterion=type(net.criterion_) if isinstance(net.criterion, str) else net.criterion,
        callbacks="disable",
        train_split=None,
        verbose=0,
        client=None,
        checkpoint=None,
        ema=None,  # the rank has the state, and with it the average
        sync=None,  # one process that averages would be refused; the strategy is in the spec
    )
    try:
        made: bytes = cloudpickle.dumps((type(net), settings))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise cannot_copy(net, "pickled", error) from None
    return made


def data_owners(dataset: Any) -> list[Any]:
    """Return the user's objects: their data stay on a cluster while they exist."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, SkorchDataset):
        return leaves(dataset.X)  # y is often a copy that estimators make
    return [dataset]


def _limits(net: Any, fit: Fit, chunks: Chunks | None) -> Limits:
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
