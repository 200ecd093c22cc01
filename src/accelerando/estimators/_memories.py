"""States of callbacks, read from a file: only attributes that already hold such a value are set.

A state file may come from somebody else. An attribute of a callback is set only if saving writes
attributes of this name, the callback has it, and the value is of the kind that it holds: a file can
neither turn a counter into a path nor replace a function.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_WORDS = re.compile(r"[\w +-]*")  # no separators of paths, no dots
_MAX_DEPTH = 20
_NUMBER = (int, float, np.number)


def restore(callback: Any, plain: Any, tensors: Any, *, trusted: bool = False) -> None:
    """Give a callback its memory back; warn about what does not fit.

    Parameters
    ----------
    callback : skorch.callbacks.Callback
        As ``on_train_begin`` left it.
    plain, tensors : mapping
        Values by attribute, as ``capture_callbacks`` returned them.
    trusted : bool
        Whether they were captured in this process, not read from a file.
    """
    refused = []
    for key, value in _items(plain):
        if trusted or _is_memory(callback, key):
            current = getattr(callback, key, None)
            if hasattr(current, "load_state_dict") and not isinstance(current, type):
                refused += _load(current, key, value, trusted=trusted)
                continue
            if trusted or fits(value, current):
                setattr(callback, key, value)
                continue
        refused.append(key)
    for key, value in _items(tensors):
        is_tensors = isinstance(value, dict) and (
            all(isinstance(name, str) for name in value)
            and all(isinstance(one, torch.Tensor) for one in value.values())
        )
        current = vars(callback).get(key) if isinstance(key, str) else None
        if is_tensors and (trusted or (_is_memory(callback, key) and _holds_tensors(current))):
            setattr(callback, key, value)
        else:
            refused.append(key)
    if refused:
        names = ", ".join(repr(key)[:60] for key in refused[:10])
        warnings.warn(
            f"The state holds values of {type(callback).__name__} that are not restored: {names}. "
            "Only numbers, words, lists and tensors are, in attributes whose names end with '_' "
            "and that hold such a value, or None, when training begins.",
            stacklevel=7,
        )


def _items(content: Any) -> list[tuple[Any, Any]]:
    return list(content.items()) if isinstance(content, Mapping) else []


def _is_memory(callback: Any, key: Any) -> bool:
    """Return True if saving writes attributes of this name, and the callback has this one."""
    is_name = isinstance(key, str) and key.endswith("_") and not key.startswith("_")
    return is_name and key in vars(callback) and not hasattr(type(callback), key)


def _holds_tensors(current: Any) -> bool:
    if current is None:
        return True
    return isinstance(current, dict) and all(
        isinstance(one, torch.Tensor) for one in current.values()
    )


def _load(target: Any, key: str, value: Any, *, trusted: bool) -> list[str]:
    """Load the state of a scheduler; return the names of the entries that do not fit."""
    present = target.state_dict()
    if not isinstance(value, dict) or not isinstance(present, dict):
        return [key]
    accepted = {
        k: v for k, v in value.items() if trusted or (k in present and _same(v, present[k]))
    }
    target.load_state_dict({**present, **accepted})
    return [f"{key}.{name}" for name in value if name not in accepted]


def _same(value: Any, current: Any, depth: int = 0) -> bool:
    """Return True if a value has the structure of the present one: no new names, same kinds.

    Schedulers of schedulers pass parts of their state on, which then become attributes.
    """
    if depth > _MAX_DEPTH:
        return False
    if isinstance(current, dict):
        return isinstance(value, dict) and all(
            key in current and _same(one, current[key], depth + 1) for key, one in value.items()
        )
    if isinstance(current, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(current):
            return False  # one number per parameter group, or per phase
        if any(isinstance(one, dict | list) for one in current):
            return all(_same(v, c, depth + 1) for v, c in zip(value, current, strict=True))
    return not _has_dict(value) and fits(value, current)


def _has_dict(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_dict(one) for one in value)
    return isinstance(value, dict)


def fits(value: Any, current: Any) -> bool:
    """Return True if a value read from a file may replace what an attribute holds.

    Examples
    --------
    >>> fits(3, 0), fits("warm", "cold"), fits([1, 2], []), fits(0.5, None)
    (True, True, True, True)
    >>> fits("/etc/passwd", "model"), fits("model", print), fits("3", 0)
    (False, False, False)
    """
    if value is None or (isinstance(value, str) and isinstance(current, str) and value == current):
        return current is None or isinstance(current, (str, bool, np.bool_, *_NUMBER, list, dict))
    if current is None:
        return is_plain(value)
    if isinstance(current, bool | np.bool_):
        return isinstance(value, bool | np.bool_)
    kinds = {_NUMBER: _NUMBER, (str,): (str,), (list, tuple): (list, tuple), (dict,): (dict,)}
    for present, allowed in kinds.items():
        if isinstance(current, present):
            return isinstance(value, allowed) and is_plain(value)
    return False


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return True for numbers, words, and lists and dictionaries of them."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, str):
        return _WORDS.fullmatch(value) is not None
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_plain(v, depth + 1) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(one, depth + 1) for one in value)
    return value is None or isinstance(value, (bool, np.bool_, *_NUMBER))
