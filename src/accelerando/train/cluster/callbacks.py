"""Which callbacks can follow training that happens elsewhere."""

from __future__ import annotations

from typing import Any

from skorch.callbacks import BatchScoring, Callback, EpochScoring, LRScheduler, ProgressBar

from accelerando.exceptions import UnsupportedError

_PER_BATCH = ("on_batch_begin", "on_batch_end", "on_grad_computed")


def _hooks(callback: Any) -> list[str]:
    hooks = {name: getattr(type(callback), name) for name in _PER_BATCH}
    return [
        name
        for name, hook in hooks.items()
        if hook is not getattr(Callback, name) and not getattr(hook, "is_idle", False)
    ]


def on_ranks(net: Any) -> list[tuple[str, Any]]:
    """Return the callbacks that only look at gradients: every rank calls its own copy.

    After the gradients have met they are the same everywhere, so that clipping them on each rank
    is clipping them.
    """
    return [(name, cb) for name, cb in net.callbacks_ if _hooks(cb) == ["on_grad_computed"]]


def check_callbacks(net: Any) -> None:
    """Refuse callbacks that want to see every training batch in this process."""
    for name, callback in net.callbacks_:
        hooks = _hooks(callback)
        if not hooks or hooks == ["on_grad_computed"] or isinstance(callback, ProgressBar):
            continue
        way_out = "Do the work in on_epoch_end"
        if isinstance(callback, EpochScoring | BatchScoring):
            if not callback.on_train or not getattr(callback, "use_caching", True):
                continue  # validation batches do come by
            way_out = "Pass use_caching=False to EpochScoring, or score in on_epoch_end"
        elif isinstance(callback, LRScheduler):
            if getattr(callback, "step_every", "epoch") != "batch":
                continue
            way_out = "Pass step_every='epoch', or let a batch-size policy do the damping"
        elif not _sees_training(callback):
            continue
        raise UnsupportedError(
            f"The callback {name} ({type(callback).__name__}) acts at every batch "
            f"({', '.join(hooks)}), and with client= the batches are on the workers. {way_out}; "
            "what happened in every update is in updates_frame(). Or train in this process "
            "(client=None)."
        )


def _sees_training(callback: Any) -> bool:
    """Tell whether a callback's batch hooks are its own and not of a class known to be harmless."""
    return not type(callback).__module__.startswith("skorch.callbacks") or isinstance(
        callback, LRScheduler
    )
