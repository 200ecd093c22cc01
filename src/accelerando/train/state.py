"""A training run as one file: written whole or not at all, read without running anything.

Tensors are stored by ``torch.save`` and read with ``weights_only=True``, everything else is JSON
inside it, so that loading a file from somebody else cannot execute code.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skorch.history import History

from accelerando.batch_size._policy import FunctionPolicy
from accelerando.exceptions import StateError
from accelerando.train.averaging import start
from accelerando.train.meeting import show
from accelerando.train.records import UPDATE_COLUMNS
from accelerando.train.run import Run, get_rng

FORMAT = "accelerando-state"
VERSION = 4


def save(net: Any, path: str | os.PathLike[str], *, training: bool) -> None:
    """Write everything that a later process needs to go on as if it had never stopped."""
    run: Run = net.run_
    gather(net)
    if net.fleet_ is not None:
        show(net)  # what is loaded to predict is the average of now
    rng = get_rng() if training or not run.seeded else run.rng
    # What was loaded and has not been trained since is with its callbacks only once they begin.
    resume = capture_callbacks(net) if net.resume_ is None else net.resume_[:2]
    callbacks, callback_tensors = resume
    plain = {
        "estimator": type(net).__name__,
        **position(net),
        "policy": repr(net.policy_),
        "control": net.control_.describe(),
        "sync": repr(net.strategy_),
        "columns": list(net.records_.updates.columns),
        "history": list(net.history),
        "classes": np.asarray(net.classes_inferred_).tolist()
        if hasattr(net, "classes_inferred_")
        else None,
        "callbacks": callbacks,
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        "json": json.dumps(plain, default=_plain),
        **learned(net),
        "updates": net.records_.updates.tensor(),
        "epochs": net.records_.epochs.tensor(),
        "rng": rng or [],
        "ranks": ranks_of(net),
        "callback_tensors": callback_tensors,
    }
    write_atomically(Path(path), content)


def checkpoint_file(folder: str | os.PathLike[str]) -> Path:
    """Return the file of a checkpoint directory, which is made if it does not exist."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / "state.pt"


def is_unfinished(path: Path) -> bool:
    """Tell whether a file holds a run that was stopped before its last epoch's end."""
    if not path.exists():
        return False
    run = json.loads(read(path)["json"])["run"]
    return bool(run["epoch"] < run["until"])


def load(net: Any, path: str | os.PathLike[str]) -> None:
    """Put a saved run into a net built with the same settings."""
    content = read(Path(path))
    plain = json.loads(content["json"])
    if not net.initialized_:
        net.initialize()
    take_up(net, content, plain, origin=path)
    net.run_.rng = content["rng"] or None
    if type(net.policy_) is not FunctionPolicy and plain["policy"] != repr(net.policy_):
        warnings.warn(
            f"{path} was saved with batch_size={plain['policy']}; the estimator has "
            f"{net.policy_!r}, which starts without a memory.",
            stacklevel=3,
        )
        net.run_.policy_state = net.policy_.start()
    if plain.get("control", []) != net.control_.describe():
        warnings.warn(
            f"{path} was saved with other monitors or policies; those of the estimator start "
            "without a memory.",
            stacklevel=3,
        )
        net.run_.control = net.control_.start()
    net.fleet_, net.saved_ranks_ = None, content["ranks"] or None
    if plain["sync"] != repr(net.strategy_):
        warnings.warn(
            f"{path} was saved with sync={plain['sync']}; the estimator has {net.strategy_!r}. All "
            "ranks start from the saved model.",
            stacklevel=3,
        )
        net.run_.sync, net.saved_ranks_ = start(net.strategy_), None
    net.records_.updates.load(content["updates"], plain.get("columns", UPDATE_COLUMNS))
    net.records_.epochs.load(content["epochs"])
    net.history_ = _history(plain["history"])
    if plain["classes"] is not None:
        net.classes_inferred_ = np.asarray(plain["classes"])
    net.resume_ = (plain["callbacks"], content["callback_tensors"], learning_rates(net))


def learned(net: Any) -> dict[str, Any]:
    """Return what training has changed: parameters, buffers, the optimizers' memories."""
    return {
        "modules": dict(_states(net, net._modules + net._criteria)),
        "optimizers": _python_numbers(dict(_states(net, net._optimizers))),
    }


def gather(net: Any) -> None:
    """Take up from ranks of a cluster, while there are any, what only they have."""
    drive = vars(net).get("drive_")
    if drive is not None:
        drive.gather()


def ranks_of(net: Any) -> dict[str, Any]:
    """Return the parameters of ranks that have their own, and what belongs to them."""
    found: dict[str, Any] = net.fleet_.to_save() if net.fleet_ else net.saved_ranks_ or {}
    return dict(_python_numbers(found))


def _python_numbers(content: Any) -> Any:
    """Replace NumPy's numbers, as a search draws them for ``lr``: PyTorch reads tensors only."""
    if isinstance(content, dict):
        return {key: _python_numbers(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_python_numbers(value) for value in content)
    return content.item() if isinstance(content, np.generic) else content


def position(net: Any) -> dict[str, Any]:
    """Return where the run stands, as plain numbers."""
    return {"run": net.run_.to_json(), "micro_batch": net.micro_.to_json()}


def take_up(
    net: Any, content: dict[str, Any], plain: dict[str, Any], *, origin: object = "The state"
) -> None:
    """Put what :func:`learned` and :func:`position` returned into a net."""
    _put(net, origin, net._modules + net._criteria, content["modules"])
    _put(net, origin, net._optimizers, content["optimizers"])
    net.run_ = Run(**plain["run"])
    net.micro_.from_json(plain["micro_batch"])


def _history(rows: list[dict[str, Any]]) -> History:
    history = History()
    history.extend(rows)
    return history


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write beside the target, flush to disk, then rename: no reader ever sees half a file."""
    folder = path.absolute().parent
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # make the rename itself survive a power cut
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read(path: Path) -> dict[str, Any]:
    """Return the content of a state file, or say what is wrong with it."""
    with path.open("rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what PyTorch raises depends on where the damage is
            raise StateError(
                f"{path} is not a state that save_state wrote, or it is damaged: "
                f"{(str(error) or repr(error)).splitlines()[0]}"
            ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StateError(
            f"{path} is not a state that save_state wrote. Files of save_params are read with "
            "load_params."
        )
    if content["version"] != VERSION:
        raise StateError(
            f"{path} has version {content['version']} of the state format; this accelerando reads "
            f"version {VERSION}."
        )
    return content


def _states(net: Any, names: Iterable[str]) -> Iterable[tuple[str, Any]]:
    for name in names:
        part = getattr(net, name + "_")
        if hasattr(part, "state_dict"):
            yield name, part.state_dict()


def _put(net: Any, path: object, names: Iterable[str], states: dict[str, Any]) -> None:
    for name in names:
        part = getattr(net, name + "_")
        if not hasattr(part, "load_state_dict"):
            continue
        try:
            part.load_state_dict(states[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise StateError(
                f"{path} was saved from an estimator with another {name}: {error}. Build the "
                "estimator with the settings it was saved with, then load."
            ) from error


def learning_rates(net: Any) -> list[list[float]]:
    """Return the learning rate of every parameter group of every optimizer."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [[float(group["lr"]) for group in o.param_groups] for o in optimizers]


Resume = tuple[dict[str, Any], dict[str, Any], list[list[float]]]


def capture_callbacks(net: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what skorch's callbacks have learned: plain values, and tensors."""
    plain: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for name, callback in getattr(net, "callbacks_", []):
        for key, value in vars(callback).items():
            if not key.endswith("_"):
                continue
            if hasattr(value, "state_dict") and not isinstance(value, type):
                plain.setdefault(name, {})[key] = _json_part(value.state_dict())
            elif _is_json(value):
                plain.setdefault(name, {})[key] = value
            elif _is_tensors(value):
                tensors.setdefault(name, {})[key] = value
    return plain, tensors


def continue_with(net: Any, resume: Resume) -> None:
    """Undo what ``on_train_begin`` reset: counters, schedulers and learning rates go on."""
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


def _plain(value: Any) -> Any:
    """Turn NumPy's and PyTorch's numbers into Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in the history cannot be saved as JSON.")


def _is_json(value: Any) -> bool:
    """Tell whether a value comes back from JSON as it was; keys that are numbers would not."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(v) for key, v in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _json_part(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if _is_json(value)}


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, torch.Tensor) for v in value.values())


class Saves:
    """Saves that callbacks ask for, kept until every callback has had its turn.

    A scheduler that comes after the callback that saves has still to take its step for this
    event; a state written before that would resume with the wrong learning rate.
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
