"""Save and load an estimator's run: what belongs to skorch is added to the engine's state."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import torch
from skorch.history import History

from accelerando._engine import checkpoint
from accelerando._engine.position import HostState
from accelerando._engine.runtime.process import get_rng
from accelerando._engine.state import TrainState, describe
from accelerando.estimators._skorch import components_of
from accelerando.policies._core import FunctionPolicy

Resume = tuple[dict[str, Any], dict[str, Any], list[list[float]]]


def save(net: Any, path: str | os.PathLike[str], *, training: bool) -> None:
    """Write everything that a later process needs to continue as if the run had never stopped."""
    state: TrainState = net._state_
    # The callbacks of a loaded state get their memories back only when training begins.
    plain, tensors = capture_callbacks(net) if net._resume_ is None else net._resume_[:2]
    classes = getattr(net, "classes_inferred_", None)
    state.host = HostState(
        {
            "estimator": type(net).__name__,
            "history": list(net.history),
            "classes": None if classes is None else np.asarray(classes).tolist(),
            "callbacks": plain,
        },
        tensors,
    )
    state.components = components_of(net)
    content = state.state_dict()
    if training or not state.seeded:
        content["tensors"]["rng"] = get_rng()
    checkpoint.write(path, content)


def load(net: Any, path: str | os.PathLike[str]) -> None:
    """Put a saved run into a net that was built with the same settings."""
    content = checkpoint.read(path)
    if not net.initialized_:
        net.initialize()
    state: TrainState = net._state_
    state.components = components_of(net)
    state.load_state_dict(content, origin=path)
    _forget_foreign_memories(net, state, path)
    host = state.host.plain
    net.history_ = History()
    net.history_.extend(host["history"])
    if host["classes"] is not None:
        net.classes_inferred_ = np.asarray(host["classes"])
    net._resume_ = (host["callbacks"], state.host.tensors, learning_rates(net))


def _forget_foreign_memories(net: Any, state: TrainState, path: object) -> None:
    """Warn, and start without a memory, if policies, monitors or strategy are others."""
    control, strategy = net._pieces_
    saved, present = state.made_with, describe(control, strategy)
    memories = control.start()
    is_function = type(control.policies[0]) is FunctionPolicy
    if not is_function and saved["policy"] != present["policy"]:
        warnings.warn(
            f"{path} was saved with batch_size={saved['policy']}; the estimator has "
            f"{present['policy']}, which starts without a memory.",
            stacklevel=4,
        )
        state.memories.policies[:1] = memories.policies[:1]
    if saved["control"] != present["control"]:
        warnings.warn(
            f"{path} was saved with other monitors or policies; those of the estimator start "
            "without a memory.",
            stacklevel=4,
        )
        state.adopt_standing(memories)
    if saved["sync"] != present["sync"]:
        warnings.warn(
            f"{path} was saved with sync={saved['sync']}; the estimator has {strategy!r}. All "
            "ranks start from the saved model.",
            stacklevel=4,
        )
        state.adopt_strategy(strategy)
    state.made_with = present


# -- callbacks ------------------------------------------------------------------------------------


def learning_rates(net: Any) -> list[list[float]]:
    """Return the learning rate of every parameter group of every optimizer."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [[float(group["lr"]) for group in o.param_groups] for o in optimizers]


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


def continue_callbacks(net: Any, resume: Resume) -> None:
    """Undo what ``on_train_begin`` has reset: counters, schedulers and learning rates continue."""
    plain, tensors, rates = resume
    for name, callback in net.callbacks_:
        for key, value in plain.get(name, {}).items():
            current: Any = getattr(callback, key, None)
            if current is not None and hasattr(current, "load_state_dict"):
                current.load_state_dict({**current.state_dict(), **value})
            else:
                setattr(callback, key, value)
        for key, value in tensors.get(name, {}).items():
            setattr(callback, key, value)
    for optimizer, lrs in zip(net._optimizers, rates, strict=True):
        groups = getattr(net, optimizer + "_").param_groups
        for group, lr in zip(groups, lrs, strict=True):
            group["lr"] = lr


def _is_json(value: Any) -> bool:
    """Return True if a value survives JSON unchanged; keys that are numbers would not."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(v) for key, v in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, torch.Tensor) for v in value.values())
