"""Checks of settings, made before hours are spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any


def check_patience(patience: Any, automatic: Callable[[], int]) -> int | None:
    """Return the calls to wait for an improvement, None for no such rule."""
    if patience is None or patience is False:
        return None
    if patience is True:
        return automatic()
    if not isinstance(patience, Integral) or patience < 2:
        raise ValueError(
            "patience must be False, True (chosen for you) or an integer of at least 2 calls, got "
            f"{patience!r}."
        )
    return int(patience)


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise unless ``value`` is one of the names."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {list(allowed)}, got {value!r}.")


def check_positive(name: str, value: Any, optional: bool = False, kind: Any = Real) -> None:
    """Raise unless ``value`` is a positive number."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
        word = "integer" if kind is Integral else "number"
        also = " or None" if optional else ""
        raise ValueError(f"{name} must be a positive {word}{also}, got {value!r}.")
