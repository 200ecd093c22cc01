"""skorch as the engine needs it: a net as a model, callbacks as hooks, a Dataset as arrays.

This module and :mod:`accelerando.estimators._net` are the only ones that know skorch's private
names; ``tests/estimators/test_skorch_private.py`` has one test for each of them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from torch.utils.data import Subset, TensorDataset

from accelerando._engine.comm.communicator import UpdateResult
from accelerando._engine.data.feed import Batch, Rows, leaves, map_leaves
from accelerando._engine.model import Components
from accelerando._engine.runtime.process import Interrupt
from accelerando._engine.step import largest_number, needs_closure

if TYPE_CHECKING:
    from accelerando._engine.runtime.progress import Progress

# -- the net as a model ---------------------------------------------------------------------------


def components_of(net: skorch.NeuralNet) -> Components:
    """Return the modules, criteria and optimizers of an initialized net by their names."""
    return Components(
        *(
            {name: getattr(net, name + "_") for name in names}
            for names in (net._modules, net._criteria, net._optimizers)
        )
    )


def has_custom_loss(net: skorch.NeuralNet) -> bool:
    """Return True if a subclass computes the loss in its own way."""
    return type(net).get_loss not in (
        skorch.NeuralNet.get_loss,
        skorch.NeuralNetClassifier.get_loss,
    )


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def has_convolutions(module: nn.Module) -> bool:
    """Return True if the memory format of the module's weights may matter."""
    return any(isinstance(part, _CONVOLUTIONS) for part in module.modules())


class SkorchModel:
    """A net as the engine's :class:`~accelerando._engine.model.Model`.

    skorch's ``infer`` and ``get_loss`` convert, move and look at what they are given in every
    update: for a small model at batch 64 that is a twentieth of the time. They are skipped if no
    subclass overrides them and the tensors are on the net's device already.

    Parameters
    ----------
    net : skorch.NeuralNet
        Initialized.
    fit_params : mapping
        Further arguments of the module's ``forward``.
    """

    def __init__(self, net: skorch.NeuralNet, fit_params: Mapping[str, Any]) -> None:
        self.net = net
        self.fit_params = dict(fit_params)
        self.device = None if net.device is None else torch.device(net.device)
        self.extras: Callable[[], dict[str, Any]] = dict
        self._plain_infer = type(net).infer is skorch.NeuralNet.infer and not fit_params
        self.refresh()

    def refresh(self) -> None:
        net = self.net
        self.components = components_of(net)
        self.components.extras = self.extras()
        self.module: nn.Module = net.module_
        self.criterion = net.criterion_
        self.optimizers = list(self.components.optimizers.values())
        self.needs_closure = any(needs_closure(optimizer) for optimizer in self.optimizers)
        self.named_parameters = list(net.get_all_learnable_params())
        self.parameters = [parameter for _, parameter in self.named_parameters]
        self.buffers = list(self.module.buffers())
        self.largest = largest_number(self.parameters)
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
        with _standing_in(self.net, call):
            return self.net.infer(X, **self.fit_params)

    def loss(self, y_pred: Any, y: Any, X: Any, *, training: bool = True) -> torch.Tensor:
        if self._plain_loss and isinstance(y, torch.Tensor) and y.device == self.device:
            loss: torch.Tensor = self.criterion(y_pred, y)
        else:
            loss = self.net.get_loss(y_pred, y, X=X, training=training)
        return loss

    def step(self, closure: Callable[[], torch.Tensor] | None) -> None:
        self.net._step_optimizer(closure)

    def custom_step(self, batch: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.net.train_step(batch, **self.fit_params)
        return result


@contextmanager
def _standing_in(net: skorch.NeuralNet, module: Callable[..., Any]) -> Iterator[None]:
    """Let the net's own ``infer`` call another module, such as DDP around it."""
    bare = net.module_
    vars(net)["module_"] = module  # skorch's __setattr__ would register it as a new module
    try:
        yield
    finally:
        vars(net)["module_"] = bare


# -- callbacks ------------------------------------------------------------------------------------


class CallbacksByEvent:
    """The callbacks that do anything at an event, looked up once.

    Most callbacks do nothing at most events, and calling them all takes longer than a small layer.
    """

    def __init__(self) -> None:
        self._known_for: tuple[Any, Any] = (None, None)
        self._known: dict[str, list[Callback]] = {}

    def at(self, event: str, callbacks: list[tuple[str, Callback]], verbose: Any) -> list[Callback]:
        """Return the callbacks that override the method named `event`."""
        if self._known_for[0] is not callbacks or self._known_for[1] != verbose:
            self._known_for, self._known = (callbacks, verbose), {}
        if event not in self._known:
            idle = getattr(Callback, event)
            self._known[event] = [
                callback
                for _, callback in callbacks
                if not is_idle(getattr(type(callback), event), idle)
                and not _prints_for_nobody(callback, verbose)
            ]
        return self._known[event]


def is_idle(hook: Any, base: Any) -> bool:
    """Return True if a hook does nothing: skorch's own, or one that is marked as idle."""
    return hook is base or getattr(hook, "is_idle", False)


def _prints_for_nobody(callback: Callback, verbose: Any) -> bool:
    """Return True if a callback would format a table only to discard it.

    On small data that takes longer than many an epoch.
    """
    return type(callback) is PrintLog and callback.sink is print and not verbose


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
    """Saves that callbacks ask for, kept until every callback has had the same event.

    A scheduler that comes after the callback that saves has still to take its step; a state written
    before that would resume with the wrong learning rate.
    """

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

    Parameters
    ----------
    net : skorch.NeuralNet
        Whose callbacks are called.
    interrupt : Interrupt
        Checked last: Ctrl-C takes effect between two updates, never inside one.
    save : callable
        Writes a checkpoint.
    every : int or None
        Updates between two checkpoints.
    """

    progress: Progress | None = None

    def __init__(
        self, net: Any, interrupt: Interrupt, save: Callable[[], None], every: int | None
    ) -> None:
        self.net, self.interrupt, self.save, self.every = net, interrupt, save, every

    def before_update(self, batch: Batch) -> None:
        self.net.notify("on_batch_begin", batch=batch.data, training=True)

    def gradients_ready(self, batch: Batch) -> None:
        if self.net._callbacks_at("on_grad_computed"):
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


def split_params(net: Any, method: str, fit_params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``train_split``: all of them, unless metadata routing says which."""
    if not sklearn.get_config()["enable_metadata_routing"]:
        return fit_params
    routed = process_routing(net, method, **fit_params)
    splitter = routed.get("splitter")
    return dict(splitter["split"]) if splitter else {}


# -- fit ------------------------------------------------------------------------------------------


def check_classes(y: Any) -> None:
    """Refuse classes that are names: no loss of PyTorch accepts them."""
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind in "OUS" and kind:
        raise ValueError(
            "y holds names or objects; PyTorch's losses want integers from 0 on. Encode it: "
            "y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
        )


class WeightedClassifier:
    """``fit`` of a classifier, with weights of examples and of classes."""

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
        check_classes(y)
        if class_weight is not None:
            from accelerando.estimators._data import combine_weights

            sample_weight = combine_weights(sample_weight, class_weight, y, X)
        extra = {} if sample_weight is None else {"sample_weight": sample_weight}
        super().fit(X, y, **extra, **fit_params)  # type: ignore[misc]
        return self


class WeightedRegressor:
    """``fit`` of a regressor, with weights of examples."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Train from the start (or further, with ``warm_start``).

        Parameters
        ----------
        X : array, tensor, frame, dictionary of them, or Dataset
            The examples.
        y : array of shape (n_examples, n_outputs), or None
            Their values; None if `X` is a Dataset that has them.
        sample_weight : array of shape (n_examples,), optional
            Weight of each example in the training loss; only ratios matter.
        **fit_params
            Further arguments of the module's ``forward`` and of ``train_split``.
        """
        extra = {} if sample_weight is None else {"sample_weight": sample_weight}
        super().fit(X, y, **extra, **fit_params)  # type: ignore[misc]
        return self
