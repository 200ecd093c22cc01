"""Save and load an estimator's run: what belongs to skorch is added to the engine's state."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import numpy as np
import torch
from skorch.history import History

from accelerando._engine import checkpoint
from accelerando._engine.checkpoint_folder import CheckpointWriter, newest
from accelerando._engine.model import groups_of
from accelerando._engine.position import HostState, Part
from accelerando._engine.runtime.process import get_rng
from accelerando._engine.state import TrainState, describe
from accelerando._engine.state_check import check_state
from accelerando._folder import open_folder
from accelerando._validation import parameter_error
from accelerando.estimators._memories import restore
from accelerando.estimators._probe import Recipe
from accelerando.estimators._skorch import components_of, last_row
from accelerando.exceptions import StateError
from accelerando.policies._core import FunctionPolicy

# What callbacks remember, the learning rates, and a mark if they were captured in this process.
Resume = tuple[Any, ...]
_SCHEDULED = ("momentum", "betas")  # what schedulers such as OneCycleLR change in addition to lr


def save(net: Any, path: str | os.PathLike[str], *, training: bool) -> None:
    """Write everything that a later process needs to continue as if the run had never stopped."""
    checkpoint.write(path, _content(net, list(net.history), Part.ALL, training=training))


def save_checkpoint(net: Any, *, epoch_ended: bool) -> None:
    """Begin to write a checkpoint; training continues while it is being written."""
    content = _content(net, [], Part.ALL & ~Part.RECORDS, training=True)
    best = epoch_ended and net.checkpoint_best is not None and _is_best(net)
    net._checkpoints_.save(content, net._state_.records, net.history, best=best)


def _is_best(net: Any) -> bool:
    """Return True if no epoch has been better than the one that just ended."""
    row, column = last_row(net.history), f"{net.checkpoint_best}_best"
    if column not in row and net.checkpoint_best != "valid_loss" and net._state_.position.epoch < 2:
        warnings.warn(
            f"checkpoint_best={net.checkpoint_best!r}: no callback has recorded {column!r}, so no "
            "checkpoint is kept as the best one. Add skorch's EpochScoring with this name.",
            stacklevel=6,
        )
    return bool(row.get(column, False))


def _content(net: Any, history: list[Any], parts: Part, *, training: bool) -> checkpoint.Content:
    state: TrainState = net._state_
    # The callbacks of a loaded state get their memories back only when training begins.
    plain, tensors = capture_callbacks(net) if net._resume_ is None else net._resume_[:2]
    classes = getattr(net, "classes_inferred_", None)
    state.host = HostState(
        {
            "estimator": type(net).__name__,
            "history": history,
            "classes": None if classes is None else np.asarray(classes).tolist(),
            "callbacks": plain,
            "inputs": net._recipe_.plain(),
        },
        tensors,
    )
    state.components = components_of(net)
    content = state.state_dict(parts)
    if not state.seeded or (training and state.rng is None):
        content["tensors"]["rng"] = get_rng()
    return content


def load(net: Any, path: str | os.PathLike[str], *, best: bool = False) -> None:
    """Put a saved run into a net that was built with the same settings."""
    folder = open_folder(path)
    if not folder.exists():
        if best:
            raise ValueError(
                f"best=True needs a checkpoint directory. Got the file {path} instead."
            )
        load_content(net, checkpoint.read(path), path)
        return
    found = newest(folder, best=best)
    if found is None:
        kind = "checkpoint of a best epoch" if best else "checkpoint"
        raise FileNotFoundError(f"There is no {kind} in {path}.")
    load_content(net, found[1], folder.path(found[0]))


def open_checkpoints(net: Any) -> None:
    """Prepare the checkpoint directory; load an unfinished run if this one has not begun."""
    writer = net._checkpoints_
    if writer is not None and os.fspath(writer.path) == os.fspath(net.checkpoint):
        writer.keep = net.checkpoint_keep
        return
    try:
        folder, continues = open_folder(net.checkpoint), None
        folder.create()
    except (OSError, ValueError) as error:
        allowed = f"a folder that can be written ({error})"
        raise parameter_error(type(net), "checkpoint", allowed, net.checkpoint) from error
    if net._state_.position.update == 0:
        found = newest(folder)
        if found is not None:
            check_state(found[1], folder.path(found[0]))
        if found is not None and checkpoint.is_unfinished(found[1]):
            continues = found[0]
            load_content(net, found[1], folder.path(continues))
    net._checkpoints_ = CheckpointWriter(
        net.checkpoint, keep=net.checkpoint_keep, continues=continues
    )


def load_content(net: Any, content: checkpoint.Content, path: object) -> None:
    """Put the content of a file into a net."""
    check_state(content, str(path))
    if not net.initialized_:
        net.initialize()
    state: TrainState = net._state_
    state.components = components_of(net)
    try:
        state.load_state_dict(content, origin=path)
    except (TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise StateError(f"{path} does not fit this estimator, or is damaged: {error!r}") from error
    _forget_foreign_memories(net, state, path)
    host = state.host.plain
    net.history_ = History()
    net.history_.extend(host["history"])
    if host["classes"] is not None:
        net.classes_inferred_ = np.asarray(host["classes"])
    net._recipe_ = Recipe.of(host.get("inputs", {}))
    if isinstance(net.criterion, str) and net._recipe_.logits:
        net.initialize_criterion()
        state.components = components_of(net)
    net._resume_ = (host["callbacks"], state.host.tensors, learning_rates(net))


def _forget_foreign_memories(net: Any, state: TrainState, path: object) -> None:
    """Warn, and start without a memory, if policies, monitors or strategy are others."""
    control, strategy = net._pieces_
    saved, present = state.made_with, describe(control, strategy)
    if state.ema is not None and state.ema.decay != net.ema:
        warnings.warn(
            f"{path} was saved with ema={state.ema.decay}; the estimator has {net.ema}, which "
            "counts from now on.",
            stacklevel=5,
        )
    memories = control.start()
    is_function = type(control.policies[0]) is FunctionPolicy
    if not is_function and saved["policy"] != present["policy"]:
        warnings.warn(
            f"{path} was saved with batch_size={saved['policy']}; the estimator has "
            f"{present['policy']}, which starts without a memory.",
            stacklevel=5,
        )
        state.memories.policies[:1] = memories.policies[:1]
    earlier = [_present_text(text) for text in saved["control"]]
    if present["control"] not in (saved["control"], earlier):
        warnings.warn(
            f"{path} was saved with other monitors or policies; those of the estimator start "
            "without a memory.",
            stacklevel=5,
        )
        state.adopt_standing(memories)
    if saved["sync"] != present["sync"]:
        warnings.warn(
            f"{path} was saved with sync={saved['sync']}; the estimator has {strategy!r}. All "
            "ranks start from the saved model.",
            stacklevel=5,
        )
        state.adopt_strategy(strategy)
    state.made_with = present


def _present_text(text: str) -> str:
    """Return how this version describes a monitor or a policy of an earlier one.

    >>> _present_text("GradientNoiseScale(error=0.03, shortest=20.0, longest=10000.0, every=25)")
    'GradientNoiseScale(every=None)'
    """
    former = r"GradientNoiseScale\(error=[^,]+, shortest=[^,]+, longest=[^,]+, every=(\d+)\)"
    text = re.sub(former, r"GradientNoiseScale(every=\1)", text)
    text = text.replace("GradientNoiseScale(every=25)", "GradientNoiseScale(every=None)")
    return re.sub(r"^(NoiseScale\(.*surest=)0\.3\)$", r"\g<1>0.5)", text)


# -- callbacks ------------------------------------------------------------------------------------


def learning_rates(net: Any) -> list[list[dict[str, Any]]]:
    """Return what schedulers change of every parameter group of every optimizer."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [
        [
            {"lr": float(group["lr"]), **{key: group[key] for key in _SCHEDULED if key in group}}
            for group in groups_of(optimizer)
        ]
        for optimizer in optimizers
    ]


def capture_callbacks(net: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what skorch's callbacks have learned: JSON values, and tensors."""
    plain: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for name, callback in getattr(net, "callbacks_", []):
        for key, value in vars(callback).items():
            if not key.endswith("_"):
                continue
            if hasattr(value, "state_dict") and not isinstance(value, type):
                state = {k: v for k, v in value.state_dict().items() if _is_json(v)}
                plain.setdefault(name, {})[key] = state
            elif _is_json(value):
                plain.setdefault(name, {})[key] = value
            elif _is_tensors(value):
                tensors.setdefault(name, {})[key] = value
    return plain, tensors


def leave_epoch(state: TrainState, n_examples: int | None, epochs: int) -> None:
    """End an interrupted epoch that other data cannot continue, with a warning."""
    position = state.position
    warnings.warn(
        f"The interrupted epoch had {position.n_examples} training examples, these data "
        f"have {n_examples}: a new run of {epochs} epochs begins, and the rest of the "
        "epoch is left out.",
        stacklevel=5,
    )
    state.end_epoch()
    position.until = position.epoch


def continue_callbacks(net: Any, resume: Resume) -> None:
    """Undo what ``on_train_begin`` has reset: counters, schedulers and learning rates continue."""
    plain, tensors, rates, *captured_here = resume
    for name, callback in net.callbacks_:
        trusted = bool(captured_here)
        restore(callback, plain.get(name), tensors.get(name), trusted=trusted)
    schedules = any(hasattr(callback, "lr_scheduler_") for _, callback in net.callbacks_)
    for optimizer, settings in zip(net._optimizers, rates, strict=True):
        groups = groups_of(getattr(net, optimizer + "_"))
        for group, known in zip(groups, settings, strict=True):
            # An estimator that was pickled by an earlier version remembers numbers.
            values = known if isinstance(known, dict) else {"lr": known}
            group.update(values if schedules else {"lr": values["lr"]})


def _is_json(value: Any) -> bool:
    """Return True if a value survives JSON unchanged; keys that are numbers would not."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(v) for key, v in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, torch.Tensor) for v in value.values())
