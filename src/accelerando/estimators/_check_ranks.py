"""What ranks can compute, real or virtual ones: checks of strategies, codecs, rows and callbacks.

Used by fits with ``sync``, ``virtual_ranks``, ``compression`` or ``client``.
"""

from __future__ import annotations

import copy
from typing import Any

import cloudpickle
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
from torch.optim.lr_scheduler import ReduceLROnPlateau

from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import check_sparse
from accelerando._engine.model import LARGE_MODEL
from accelerando._engine.step import needs_closure
from accelerando.compress import Adaptive, ErrorFeedback, PowerSGD
from accelerando.compress._codec import Compressor
from accelerando.estimators._check_rows import GATHERS
from accelerando.estimators._skorch import acts, module_of, overrides
from accelerando.exceptions import UnsupportedError
from accelerando.sync import Averaging
from accelerando.sync._strategy import Strategy


def check_client(kind: type[Any], client: Any) -> None:
    """Refuse what is no connected, synchronous client of Dask."""
    if not hasattr(client, "scheduler_info") or hasattr(client, "get_client"):
        raise TypeError(
            f"The 'client' parameter of {kind.__name__} must be a distributed.Client, or None to "
            f"train in this process. Got {client!r} instead."
        )
    if getattr(client, "asynchronous", False) or getattr(client, "status", "running") != "running":
        raise UnsupportedError(
            f"The 'client' parameter of {kind.__name__} must be connected, and synchronous "
            "(Client(asynchronous=False), outside of coroutines): fit waits for the cluster. Got "
            f"{client!r} instead."
        )


def check_gather(net: Any, strategy: Strategy) -> None:
    """Refuse what ``couples_rows="gather"`` cannot be combined with."""
    if isinstance(strategy, Averaging):
        raise UnsupportedError(
            f"{GATHERS}, and with sync={strategy!r} each rank has a batch of its own, whose rows "
            "are not divided. Leave couples_rows out."
        )
    if isinstance(net.micro_batch_size, int):
        raise UnsupportedError(
            f"{GATHERS}, and micro_batch_size={net.micro_batch_size} divides it. Leave "
            'micro_batch_size at "auto", which then does not divide.'
        )


def check_averaging(net: Any, strategy: Averaging, *, custom: bool) -> None:
    """Refuse training steps and optimizers that cannot be averaged."""
    name = type(strategy).__name__
    if custom:
        raise UnsupportedError(
            f"{type(net).__name__} has its own train_step, in which the rows of ranks could not be "
            f"weighed as {name} requires. Override get_loss or infer instead."
        )
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} searches along a line by the loss of its own batch, from which {name} "
            "would move it away. Use SGD, Adam or another optimizer that steps by the gradient "
            "alone."
        )


def check_compressor(net: Any, compressor: Compressor | None) -> None:
    """Refuse a compressor that does not fit the optimizer, or a single process."""
    check_sparse(module_of(net), [getattr(net, name + "_") for name in net._optimizers])
    inner = compressor.codec if isinstance(compressor, Adaptive) else compressor
    if isinstance(inner, PowerSGD) and net.client is None:
        raise UnsupportedError(
            f"compression={compressor!r} is a way to add gradients up over ranks, and without a "
            "client there is only this process. Pass a client, or a codec such as Atomo or QSGD, "
            "which this process applies to its own gradient."
        )
    if not isinstance(inner, ErrorFeedback | PowerSGD):
        return
    # L-BFGS uses differences of the gradients it has evaluated: what error feedback would add to
    # the next one belongs to no step.
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} evaluates gradients several times in one update, and "
            f"compression={compressor!r} adds to each what those before it left out: the "
            "differences that the optimizer looks at would not be those of the loss. Use a codec "
            "without memory, such as Atomo or QSGD, or another optimizer."
        )


def _with_closures(net: Any) -> list[str]:
    """Return the names of the optimizers that evaluate the loss themselves."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [type(one).__name__ for one in optimizers if needs_closure(one)]


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
_READERS = (EpochTimer, PassthroughScoring, PrintLog, ProgressBar)


def needs_model(net: Any, fit: Fit) -> bool:
    """Return True if the model may be read or changed here before the next epoch, or is small."""
    if sum(p.nbytes for _, p in fit.model.components.named_parameters()) < LARGE_MODEL:
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
