"""skorch as the engine needs it: a net as a model, callbacks as hooks, a Dataset as arrays.

This module and :mod:`accelerando.estimators._net` are the only ones that know skorch's private
names; ``tests/estimators/test_skorch_private.py`` has one test for each of them.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import sklearn
import skorch
import torch
from scipy import sparse
from sklearn.utils.metadata_routing import process_routing
from skorch.callbacks import Callback, PrintLog, ProgressBar
from skorch.dataset import Dataset as SkorchDataset
from skorch.utils import is_pandas_ndframe
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from accelerando._engine import step as steps
from accelerando._engine.comm.communicator import UpdateResult
from accelerando._engine.data.feed import Batch, Feed, Rows, choose_feed, leaves, map_leaves
from accelerando._engine.model import Components
from accelerando._engine.runtime.process import Interrupt
from accelerando.estimators._epoch_table import EpochTable, log

if TYPE_CHECKING:
    from accelerando._engine.runtime.progress import Progress

# -- the net as a model ---------------------------------------------------------------------------


def components_of(net: skorch.NeuralNet) -> Components:
    """Return the modules, criteria and optimizers of an initialized net by their names."""
    kinds = (net._modules, net._criteria, net._optimizers)
    return Components(*({name: getattr(net, name + "_") for name in names} for names in kinds))


def module_of(net: skorch.NeuralNet) -> nn.Module:
    """Return the module, or the first one of a net whose modules have other names."""
    name = "module_" if hasattr(net, "module_") else net._modules[0] + "_"
    module: nn.Module = getattr(net, name)
    return module


def criterion_of(net: skorch.NeuralNet) -> Any:
    """Return the criterion; None if a net has criteria with other names, or none."""
    return getattr(net, "criterion_", None)


def has_custom_loss(net: skorch.NeuralNet) -> bool:
    """Return True if a subclass, or the instance, computes the loss in its own way."""
    return "get_loss" in vars(net) or type(net).get_loss not in (
        WeightedClassifier.get_loss,
        skorch.net.NeuralNet.get_loss,
        skorch.classifier.NeuralNetClassifier.get_loss,
    )


def overrides(net: skorch.NeuralNet, method: str) -> bool:
    """Return True if a user's subclass, or the instance, has its own method."""
    kind = type(net)
    ours = next(one for one in kind.__mro__ if one.__module__.startswith("accelerando."))
    return method in vars(net) or getattr(kind, method) is not getattr(ours, method)


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def has_convolutions(module: nn.Module) -> bool:
    """Return True if the memory format of the module's weights may matter."""
    return any(isinstance(part, _CONVOLUTIONS) for part in module.modules())


class SkorchModel:
    """A net as the engine's :class:`~accelerando._engine.model.Model`.

    skorch's ``infer`` and ``get_loss`` convert, move and look at what they are given in every
    update: for a small model at batch 64 that is a twentieth of the time. They are skipped if no
    subclass overrides them and the tensors are on the net's device already.
    """

    def __init__(self, net: skorch.NeuralNet, fit_params: Mapping[str, Any]) -> None:
        self.net = net
        self.fit_params = dict(fit_params)
        self.device = None if net.device is None else torch.device(net.device)
        self.extras: Callable[[], dict[str, Any]] = dict
        own = "infer" in vars(net) or type(net).infer is not skorch.net.NeuralNet.infer
        self._plain_infer = not own and not fit_params
        self.refresh()

    def refresh(self) -> None:
        net = self.net
        self.components = components_of(net)
        self.components.extras = self.extras()
        self.module = module_of(net)
        self.criterion = criterion_of(net)
        optimizers = list(self.components.optimizers.values())
        if optimizers != getattr(self, "optimizers", None):  # signatures take long to inspect
            self.optimizers = optimizers
            self.own_steps = any(map(steps.has_own_step, optimizers))
            self.needs_closure = any(map(steps.needs_closure, optimizers))
            self.offers_closure = any(map(steps.offers_closure, optimizers))
        self.named_parameters = list(net.get_all_learnable_params())
        self.parameters = [parameter for _, parameter in self.named_parameters]
        self.buffers = list(self.module.buffers())
        self.largest = steps.largest_number(self.parameters)
        # skorch's classifier takes the logarithm of probabilities for NLLLoss.
        self.loss_reads_inputs = has_custom_loss(net)
        self._plain_loss = not self.loss_reads_inputs and not isinstance(self.criterion, nn.NLLLoss)

    def train(self, mode: bool) -> None:
        self.net._set_training(mode)

    def forward(self, X: Any, call: Callable[..., Any]) -> Any:
        if self._plain_infer and isinstance(X, torch.Tensor) and X.device == self.device:
            return call(X)
        if call is self.module:
            return self.net.infer(X, **self.fit_params)
        from accelerando.estimators._data import standing_in

        with standing_in(self.net, call):
            return self.net.infer(X, **self.fit_params)

    def loss(self, y_pred: Any, y: Any, X: Any, *, training: bool = True) -> torch.Tensor:
        if self._plain_loss and isinstance(y, torch.Tensor) and y.device == self.device:
            loss: torch.Tensor = self.criterion(y_pred, y)
        else:
            loss = self.net.get_loss(y_pred, y, X=X, training=training)
            if self.criterion is not criterion_of(self.net):  # criterion="auto" has decided
                self.refresh()
        return loss

    def step(self, closure: Callable[[], torch.Tensor] | None) -> None:
        self.net._step_optimizer(closure)

    def custom_step(self, batch: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.net.train_step(batch, **self.fit_params)
        return result


# -- callbacks ------------------------------------------------------------------------------------


class CallbacksByEvent:
    """The callbacks that do anything at an event; calling all takes longer than a small layer."""

    def __init__(self) -> None:
        self._known_for: tuple[Any, Any] = [], None
        self._known: dict[str, list[Callback]] = {}

    def __reduce__(self) -> tuple[type[CallbacksByEvent], tuple[()]]:
        return CallbacksByEvent, ()  # a copy of the net looks up its own callbacks

    def at(self, event: str, callbacks: list[tuple[str, Callback]], verbose: Any) -> list[Callback]:
        """Return the callbacks whose method named `event` does anything."""
        if self._known_for != (callbacks, verbose) or event == "on_epoch_begin":
            self._known_for, self._known = (list(callbacks), verbose), {}
        if event not in self._known:
            self._known[event] = [
                callback
                for _, callback in callbacks
                if acts(callback, event) and not prints_for_nobody(callback, verbose)
            ]
        return self._known[event]


def prints_for_nobody(callback: Any, verbose: Any) -> bool:
    """Return True if a callback would format a table only to discard it, which takes long."""
    if type(callback) not in (PrintLog, EpochTable) or callback.sink is not print or verbose:
        return False
    return type(callback) is PrintLog or not log.isEnabledFor(logging.INFO)


def acts(callback: Any, event: str) -> bool:
    """Return True if a callback's method does anything: of its class, or set on the instance."""
    method = getattr(callback, event)
    function = getattr(method, "__func__", method)  # of a mock, the mock
    # The first is skorch's own, and does nothing; others may be marked as idle.
    return function is not getattr(Callback, event) and getattr(function, "is_idle", 0) is not True


def counting(callback: Any) -> Any:
    """Let a progress bar learn the number of batches from the epoch before."""
    if isinstance(callback, ProgressBar) and callback.batches_per_epoch == "auto":
        callback = copy.copy(callback)
        callback.batches_per_epoch = "count"
    return callback


def last_row(history: Any) -> dict[str, Any]:
    """Return the history's last epoch; skorch's own indexing takes as long as a small layer."""
    row: dict[str, Any] = list.__getitem__(history, -1)
    return row


class PostponedSaves:
    """Saves that callbacks ask for, kept until all, such as schedulers, have had the event."""

    def __init__(self) -> None:
        self._depth = 0
        self._paths: list[str | os.PathLike[str]] = []

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1

    def postpone(self, path: str | os.PathLike[str]) -> bool:
        """Keep a save for later if callbacks are being called now."""
        if self._depth:
            self._paths.append(path)
        return bool(self._depth)

    def due(self) -> list[str | os.PathLike[str]]:
        """Return the saves to be made now."""
        if self._depth or not self._paths:
            return []
        paths, self._paths = self._paths, []
        return paths


class CallbackHooks:
    """skorch's history and callbacks, the progress line, checkpoints and Ctrl-C around an update.

    Checkpoints are written after `every` updates. Ctrl-C takes effect between two updates.
    """

    progress: Progress | None = None

    def __init__(
        self, net: Any, interrupt: Interrupt, save: Callable[[], None], every: int | None
    ) -> None:
        self.net, self.interrupt, self.save, self.every = net, interrupt, save, every
        self._looks_itself = overrides(net, "on_grad_computed") or overrides(net, "notify")

    def before_update(self, batch: Batch) -> None:
        self.net.notify("on_batch_begin", batch=batch.data, training=True)

    def gradients_ready(self, batch: Batch) -> None:
        if self.net._callbacks_at("on_grad_computed") or self._looks_itself:
            from accelerando.estimators._data import notify_gradients

            state = self.net._state_
            notify_gradients(self.net, batch, state.seed, state.position.update)

    def after_update(self, batch: Batch, result: UpdateResult) -> None:
        # A checkpoint written before `on_batch_end` would miss a per-update scheduler's step.
        row = last_row(self.net.history)["batches"][-1]
        row["train_loss"] = result.loss
        row["train_batch_size"] = batch.size
        self.net.notify("on_batch_end", batch=batch.data, training=True, **result.outputs)
        state = self.net._state_  # not of the fit: a cycle would keep the user's arrays for a while
        if self.progress is not None:
            self.progress.update(state.position, state.batch_size, result.loss, result.lr)
        if self.every and state.position.update % self.every == 0:
            self.save()
        self.interrupt.check()


# -- data -----------------------------------------------------------------------------------------


def in_memory(dataset: Any) -> tuple[Any, Rows | None] | None:
    """Return the arrays and the chosen rows behind a data set, or None if they are not accessible.

    A data set with its own way to make an item keeps it: only those of skorch and PyTorch whose
    items are known to be plain rows are looked through.
    """
    subset: Rows | None = None
    while type(dataset) is Subset:
        indices = np.asarray(dataset.indices, dtype=np.int64)
        subset = indices if subset is None else indices[subset]
        dataset = dataset.dataset
    if type(dataset) is TensorDataset:
        return (list(dataset.tensors), subset) if len(dataset.tensors) == 2 else None
    if type(dataset) is not SkorchDataset:
        return None
    X = dataset.X
    if is_pandas_ndframe(X):
        # As in skorch: one keyword argument of forward per column, each of shape (rows, 1).
        X = {name: X[name].to_numpy().reshape(-1, 1) for name in X}
    y = dataset.y
    if is_pandas_ndframe(y):
        y = y.to_numpy()
    if y is None:
        y = torch.zeros(len(dataset), 1)
    data = [map_leaves(_as_array, X), map_leaves(_as_array, y)]
    if any(leaf is None for leaf in leaves(data)):
        return None
    return data, subset


def _as_array(leaf: Any) -> Any:
    """Return a tensor or an array that can be indexed; None for anything else."""
    if is_pandas_ndframe(leaf):
        leaf = leaf.to_numpy()
    if isinstance(leaf, torch.Tensor):
        return leaf if leaf.layout == torch.strided and leaf.dim() > 0 else None
    if sparse.issparse(leaf):
        return leaf.tocsr()
    if not isinstance(leaf, np.ndarray) or leaf.ndim == 0 or leaf.dtype.kind not in "biufc":
        return None
    if isinstance(leaf, np.memmap) or not leaf.flags.writeable or not leaf.dtype.isnative:
        return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(leaf))


def feed_of(net: Any, dataset: Any, *, weighted: bool) -> Feed:
    """Return the training set as the engine reads it."""
    if hasattr(dataset, "lengths"):
        from accelerando._engine.data.chunks import ChunkFeed

        return ChunkFeed(dataset.lengths)
    loader = net.iterator_train
    is_loader = isinstance(loader, type) and issubclass(loader, DataLoader)
    if not is_loader or overrides(net, "get_iterator"):
        from accelerando.estimators._overrides import IteratorFeed, check_batches

        check_batches(net, weighted=weighted)
        rows = len(dataset) if hasattr(dataset, "__len__") else None
        return IteratorFeed(net.get_iterator(dataset, training=True), rows)
    options, arrays = net.get_params_for("iterator_train"), in_memory(dataset)
    options = {k: v for k, v in options.items() if k != "batch_size" or v is None}
    if arrays is None and loader is DataLoader and not options:
        from accelerando.estimators._overrides import holds_objects, items_feed

        if holds_objects(dataset):
            return items_feed(net, dataset)
    return choose_feed(arrays, dataset, options, loader=loader)


def split_params(net: Any, method: str, fit_params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``train_split``: all of them, unless metadata routing says which."""
    if not sklearn.get_config()["enable_metadata_routing"]:
        return fit_params
    routed = process_routing(net, method, **fit_params)
    splitter = routed.get("splitter")
    return dict(splitter["split"]) if splitter else {}


# -- fit ------------------------------------------------------------------------------------------


class WeightedClassifier:
    """``fit`` of a classifier, with weights of examples and of classes."""

    def initialized_instance(self, instance_or_cls: Any, kwargs: dict[str, Any]) -> Any:
        """Return a component; ``criterion="auto"`` is NLLLoss or CrossEntropyLoss."""
        if isinstance(instance_or_cls, str) and instance_or_cls == "auto":
            logits = self._recipe_.logits or "label_smoothing" in kwargs  # type: ignore[attr-defined]
            instance_or_cls = nn.CrossEntropyLoss if logits else nn.NLLLoss
        return super().initialized_instance(instance_or_cls, kwargs)  # type: ignore[misc]

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss; ``criterion="auto"`` looks at the first outputs that it sees."""
        if isinstance(self.criterion, str) and self._recipe_.logits is None:  # type: ignore[attr-defined]
            from accelerando.estimators._probe import decide_criterion

            decide_criterion(self, y_pred)
        return super().get_loss(y_pred, y_true, *args, **kwargs)  # type: ignore[misc]

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        **fit_params: Any,
    ) -> Self:
        """Train from the start (or further, with ``warm_start``).

        Parameters
        ----------
        X : array, tensor, frame, dictionary of them, or Dataset
            The examples.
        y : array or None
            Their classes; None if `X` is a Dataset that has them.
        sample_weight : array of shape (n_examples,), optional
            Weight of each example in the training loss; only ratios matter.
        class_weight : dict or "balanced", optional
            Weight of each class, as in scikit-learn.
        **fit_params
            Further arguments of the module's ``forward`` and of ``train_split``.
        """
        if class_weight is not None:
            from accelerando.estimators._data import combine_weights

            sample_weight = combine_weights(sample_weight, class_weight, y, X)
        extra = {} if sample_weight is None else {"sample_weight": sample_weight}
        super().fit(X, y, **extra, **fit_params)  # type: ignore[misc]
        return self
