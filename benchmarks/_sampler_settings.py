"""Fingerprint of the sampler's settings, to recognize results of other settings.

A run keeps ``fingerprint()``: the defaults of ARR, and the constants of the guard, of the choice of
models and of refits. The pages name results of runs with another one, or with none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from accelerando.crowd import ARR, _choice, _guard, _refit

OLDER = "earlier settings"


def fingerprint() -> str:
    """Return eight digits that change when a setting changes."""
    constants = {
        f"{module.__name__}.{name}": value
        for module in (_choice, _guard, _refit)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float | tuple | dict)
    }
    return hashlib.sha256(f"{ARR()!r} {sorted(constants.items())}".encode()).hexdigest()[:8]


def is_current(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if there are runs and all of them had the settings of today."""
    return {run.get("settings") for run in runs} == {fingerprint()}
