"""Text of an estimator: at most one screen, for every module."""

from __future__ import annotations

import inspect
import re
from typing import Any

LINES = 12  # of one value
WIDTH = 100  # of a line
_OBJECT = re.compile(r"<(?:\w+\.)*(\w+) object at 0x[0-9a-f]+>")


def shown(net: Any) -> str:
    """Return the module and the parameters that are not the defaults, one per line.

    Parameters
    ----------
    net : estimator
        Initialized or not.
    """
    state = "initialized" if net.initialized_ else "uninitialized"
    own = vars(net)
    names = [name for name in own if _is_module(name, initialized=net.initialized_)]
    defaults = inspect.signature(type(net)).parameters
    for name in own:
        if name in names or name.startswith(("module", "_")) or name.endswith("_"):
            continue
        if "__" in name or (name in defaults and _differs(own[name], defaults[name].default)):
            names.append(name)
    lines = [f"  {name}={_value(own[name])}," for name in names]
    return "\n".join([f"{type(net).__name__}[{state}](", *lines, ")"])


def _is_module(name: str, *, initialized: bool) -> bool:
    """Return True for ``module``, or for ``module_`` of an initialized net, and its parameters."""
    if initialized:
        return name.startswith("module_") and not name.startswith("module__")
    return name == "module" or name.startswith("module__")


def _differs(value: Any, default: Any) -> bool:
    if value is default:
        return False
    try:
        return bool(value != default)
    except (TypeError, ValueError):  # arrays
        return True


def _value(value: Any) -> str:
    """Return a value on at most a few lines."""
    lines = _OBJECT.sub(lambda found: found[1] + "(…)", str(value)).split("\n")
    if len(lines) > LINES:
        lines[LINES - 2 : -1] = [f"  … {len(lines) - LINES + 1} more lines"]
    return "\n  ".join(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines)
