"""Checks for ranks on a cluster: of the client, of callbacks, and of coupled rows."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import cloudpickle
import numpy as np
import torch
from skorch.callbacks import (
    BatchScoring,
    EarlyStopping,
    EpochScoring,
    EpochTimer,
    LRScheduler,
    MlflowLogger,
    NeptuneLogger,
    PassthroughScoring,
    PrintLog,
    ProgressBar,
    SacredLogger,
    TensorBoard,
)
from skorch.utils import to_tensor
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from accelerando._dask import workers_of
from accelerando._engine._torch import batch_norm_class
from accelerando._engine.coupling import (
    cut_rows,
    find_coupling,
    is_known_to_be_by_row,
    rows_to_compare,
)
from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, Feed, leaves, only_tensors, slice_rows, unpack
from accelerando._engine.division import refuse_on_ranks
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import check_sparse, is_mean_over_rows, may_broadcast
from accelerando._engine.runtime.process import Draws
from accelerando._engine.trial import changed_by_forward
from accelerando.estimators._base import EpochAverage
from accelerando.estimators._check_strategy import check_measures
from accelerando.estimators._epoch_table import EpochTable
from accelerando.estimators._skorch import acts, criterion_of, has_custom_loss, overrides
from accelerando.exceptions import UnsupportedError
from accelerando.sync import Averaging


def check_is_client(kind: type[Any], client: Any) -> None:
    """Refuse what is no client of Dask."""
    if not hasattr(client, "scheduler_info") or hasattr(client, "get_client"):
        raise TypeError(
            f"The 'client' parameter of {kind.__name__} must be a distributed.Client, or None to "
            f"train in this process. Got {client!r} instead."
        )


def check_client(kind: type[Any], client: Any) -> None:
    """Refuse what is no connected, synchronous client of Dask."""
    check_is_client(kind, client)
    if getattr(client, "asynchronous", False) or getattr(client, "status", "running") != "running":
        raise UnsupportedError(
            f"The 'client' parameter of {kind.__name__} must be connected, and synchronous "
            "(Client(asynchronous=False), outside of coroutines): fit waits for the cluster. Got "
            f"{client!r} instead."
        )


_FEW_ROWS = 4  # with which a forward pass is tried

# -- rows -----------------------------------------------------------------------------------------


def check_division(net: Any, fit: Fit) -> None:
    """Refuse what several ranks could not compute as one process does.

    Parameters
    ----------
    net : estimator
        With a client.
    fit : Fit
        The driver's fit. If it has no rows, ranks look at those of their first update.
    """
    check_sparse(fit.model.module, fit.model.optimizers)
    _check_synchronized(net, fit.model.module)
    gathers = net.couples_rows == "gather"
    if gathers:
        check_measures(fit)
    if net.couples_rows is False or isinstance(fit.spec.strategy, Averaging):
        return  # ranks that average have a batch each
    _check_structure(net, fit)
    if net.max_workers == 1:
        return
    _check_layers(fit.model.module)
    collates = getattr(fit.feed, "collate", None) is not None
    if collates:
        from accelerando.estimators._check_collate import check_collate

        check_collate(fit.feed)
    separable = is_mean_over_rows(criterion_of(net)) and not has_custom_loss(net)
    modules = fit.model.components.modules.values()
    by_row = all(map(is_known_to_be_by_row, modules)) and not may_broadcast(criterion_of(net))
    if separable and by_row and not collates:
        return
    if fit.feed.n_examples is None or getattr(fit.feed, "chunks", None) == {}:
        fit.spec = dataclasses.replace(fit.spec, probes=True)
        return
    look = functools.partial(find_coupling, fit.model, sums=fit.spec.sums, repeated=False)
    X, y = rows_of(net, fit, some_rows(fit.feed, rows_to_compare(fit.model)))
    usual = net.batch_size if isinstance(net.batch_size, int) else None
    where = look(X, y, batch_size=usual)
    if where is None and usual is not None:
        where = _look_at_a_batch(net, fit, look, X, y)
    if where is None and collates:
        from accelerando.estimators._check_collate import look_at_padding

        where = look_at_padding(net, fit, look)
    if where is not None:
        refuse_on_ranks(where, gathers=gathers)


def _look_at_a_batch(net: Any, fit: Fit, look: Any, X: Any, y: Any) -> Any:
    """Return where rows of as many as a batch and a rank have are coupled.

    What a module or a loss computes may depend on the number of rows: on a threshold, say.
    """
    most = net.max_workers
    ranks = most if isinstance(most, int) else max(1, len(workers_of(net.client)))
    data = [X, y]
    if ranks < 2 or not only_tensors(data) or len({len(leaf) for leaf in leaves(data)}) != 1:
        return None
    rows = min(net.batch_size, len(leaves(data)[0]))
    first = max(fit.spec.min_rows, rows // ranks)
    if rows - first < fit.spec.min_rows:
        return None
    X, y = slice_rows(data, 0, rows)
    return look(X, y, parts=cut_rows([X, y], [0, first, rows]))


def rows_of(net: Any, fit: Fit, rows: Any) -> Any:
    """Return rows as a batch that a rank would make of them; its collate function draws zeros."""
    with Draws(0)():
        data = fit.feed.gather(rows)
    X, y = unpack(data)
    return to_tensor(X, device=net.device), to_tensor(y, device=net.device)


def _check_synchronized(net: Any, module: nn.Module) -> None:
    whole = net.compile and net.get_params_for("compile").get("fullgraph")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise UnsupportedError(
                f"The layer {name!r} is a SyncBatchNorm, which needs its own process group. "
                "Use nn.BatchNorm1d, 2d or 3d: ranks share its statistics without it."
            )
        if whole and isinstance(layer, batch_norm_class()):
            raise UnsupportedError(
                f"compile__fullgraph=True leaves no room for the messages in which ranks share the "
                f"statistics of {name.removeprefix('_orig_mod.')!r}. Leave it out."
            )


def _check_structure(net: Any, fit: Fit) -> None:
    """Refuse modules whose forward pass changes which parameters there are, or their shapes."""
    feed = fit.feed
    known = all(map(is_known_to_be_by_row, fit.model.components.modules.values()))
    by_row = known and not has_custom_loss(net)
    if by_row or feed.n_examples is None or getattr(feed, "chunks", None) == {}:
        return
    X, _ = rows_of(net, fit, some_rows(feed, _FEW_ROWS))
    change = changed_by_forward(fit.model, X)
    if change is not None:
        raise UnsupportedError(
            f"A forward pass {change}, and with client= the module of this process and those of "
            "the workers must stay alike. Let __init__ make all parameters and buffers, in their "
            "full size; freeze parameters in on_epoch_begin of a callback; or train in this "
            "process (client=None)."
        )


def _check_layers(module: nn.Module) -> None:
    """Refuse layers that ranks cannot keep equal."""
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            raise UnsupportedError(
                f"The layer {name!r} has max_norm={layer.max_norm}: it shortens the rows that it "
                "looks up, and every rank looks up others. Leave max_norm out; or train in one "
                "process (client=None) or on one rank (max_workers=1)."
            )


def some_rows(feed: Feed, number: int) -> Any:
    """Return rows from all over the training set, several of a class if classes are at hand.

    Losses that compare rows of one class show nothing if there is one row of each.
    """
    n_examples = feed.n_examples
    assert n_examples is not None
    number = min(number, n_examples)
    number -= number % 8 if number > 8 else 0  # a module may take rows in pairs
    spread = np.linspace(0, n_examples - 1, number).round().astype(np.int64)
    if not isinstance(feed, ArrayFeed) or not isinstance(feed.data[1], torch.Tensor):
        return spread
    targets = feed.data[1]
    if targets.dim() != 1 or targets.is_floating_point():
        return spread
    classes: Any = targets.cpu().numpy()[... if feed.subset is None else feed.subset]
    common = [np.flatnonzero(classes == one)[:4] for one in np.unique(classes[spread])[:4]]
    # Two of each class at either end, so that every part has pairs.
    pairs = [rows[half::2] for half in (0, 1) for rows in common]
    middle = [row for row in spread if not any(row in rows for rows in common)]
    middle = middle[: number - sum(map(len, pairs))]
    return np.concatenate([*pairs[: len(common)], middle, *pairs[len(common) :]]).astype(np.int64)


# -- callbacks ------------------------------------------------------------------------------------

_PER_BATCH = ("on_batch_begin", "on_batch_end", "on_grad_computed")
_LOGGERS = (MlflowLogger, NeptuneLogger, SacredLogger)


def _overrides(callback: Any, base: type) -> bool:
    return any(getattr(type(callback), n) is not getattr(base, n) for n in _PER_BATCH)


def _batch_hooks(callback: Any) -> list[str]:
    return [name for name in _PER_BATCH if acts(callback, name)]


def rank_callbacks(net: Any) -> list[tuple[str, Any]]:
    """Return the callbacks of which every rank calls its own copy.

    Those that act on gradients only: after the reduction gradients are the same on all ranks, so
    that clipping them on each rank is clipping them. And schedulers that step in every update.
    """
    return [
        (name, cb)
        for name, cb in net.callbacks_
        if _batch_hooks(cb) == ["on_grad_computed"] or steps_every_update(cb)
    ]


def steps_every_update(callback: Any) -> bool:
    """Return True for skorch's scheduler with ``step_every="batch"``."""
    return (
        isinstance(callback, LRScheduler)
        and type(callback).on_batch_end is LRScheduler.on_batch_end
        and callback.step_every == "batch"
    )


def copies_for_ranks(net: Any) -> list[tuple[str, Any]]:
    """Return copies of the callbacks of ranks; a scheduler follows when its optimizer is sent."""
    found = []
    for name, callback in rank_callbacks(net):
        made = copy.copy(callback)
        if steps_every_update(callback):
            made.lr_scheduler_ = None
        try:
            cloudpickle.dumps(made)
        except Exception as error:
            raise UnsupportedError(
                f"The callback {name} ({type(callback).__name__}) acts in every update, so that "
                f"every rank needs a copy, and it cannot be pickled: {error}. Keep what cannot be "
                "sent out of its attributes, or train in this process (client=None)."
            ) from error
        found.append((name, made))
    return found


def check_callbacks(net: Any) -> None:
    """Refuse callbacks that need every training batch in this process."""
    for hook in (*_PER_BATCH, "notify"):
        if overrides(net, hook):
            raise UnsupportedError(
                f"{type(net).__name__} overrides {hook}, which is called for every batch, and with "
                "client= the batches are on the workers. Do the work in on_epoch_end, or train in "
                "this process (client=None)."
            )
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
            if callback.step_every != "batch" and not _overrides(callback, LRScheduler):
                continue
            is_known = callback.monitor in ("train_loss", "train_batch_size")
            if steps_every_update(callback) and (
                is_known or not isinstance(callback.lr_scheduler_, ReduceLROnPlateau)
            ):
                continue
            remedy = "Pass step_every='epoch' or monitor='train_loss'"
        elif isinstance(callback, TensorBoard) and not _overrides(callback, TensorBoard):
            continue  # its method does nothing
        elif isinstance(callback, _LOGGERS) and not callback.log_on_batch_end:
            continue
        raise UnsupportedError(
            f"The callback {name} ({type(callback).__name__}) acts at every batch "
            f"({', '.join(hooks)}), and with client= the batches are on the workers. {remedy}; "
            "what happened in every update is in updates_frame(). Or train in this process "
            "(client=None)."
        )


# These read the history, and no parameters.
_READERS = (EpochTimer, PassthroughScoring, EpochAverage, PrintLog, EpochTable, ProgressBar)


def needs_model(net: Any, fit: Fit) -> bool:
    """Return True if the model may be read or changed here before the next epoch, or is small."""
    if not fit.model.components.is_large:
        return True
    kind = type(net)
    own = any(callable(one) and hasattr(kind, name) for name, one in vars(net).items())
    own = own or not kind.__module__.startswith("accelerando.")
    watched = getattr(net, "_skl_callbacks", None)
    if own or watched or net.checkpoint is not None or fit.state.ema is not None:
        return True
    # Epochs that are trained again have to have as many updates on any number of ranks.
    other = isinstance(fit.spec.strategy, Averaging) or isinstance(fit.feed, ChunkFeed)
    if other or fit.feed.n_examples is None or fit.control.active or not fit.control.scheduled:
        return True
    return not all(_only_reads(callback) for _, callback in net.callbacks_)


def _only_reads(callback: Any) -> bool:
    """Return True for skorch's callbacks that need no parameters, as they are set up here."""
    if any(name.startswith("on_") and callable(value) for name, value in vars(callback).items()):
        return False
    kind = type(callback)
    if kind is EarlyStopping:
        return not callback.load_best
    if kind is EpochScoring:  # a function gets the net, and may look at all of it
        plain = callback.scoring is None or isinstance(callback.scoring, str)
        return plain and callback.use_caching and not callback.on_train
    if kind is LRScheduler:  # it changes groups, which are sent anyway
        known = type(callback.lr_scheduler_).__module__.startswith("torch.optim.")
        return known and not steps_every_update(callback)
    return kind in _READERS
