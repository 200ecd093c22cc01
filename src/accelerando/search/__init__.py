"""Hyperparameter search for estimators with ``partial_fit``: Hyperband and related algorithms."""

from typing import TYPE_CHECKING

from accelerando.search._asha import AsyncHalvingSearchCV
from accelerando.search._hyperband import HyperbandSearchCV
from accelerando.search._plan import hyperband_inputs
from accelerando.search._random import RandomIncrementalSearchCV
from accelerando.search._simulate import simulate
from accelerando.search._successive import SuccessiveHalvingSearchCV

__all__ = [
    "AsyncHalvingSearchCV",
    "HyperbandSearchCV",
    "RandomIncrementalSearchCV",
    "SuccessiveHalvingSearchCV",
    "hyperband_inputs",
    "simulate",
]

# Names that were public in version 0.1: where they are now, and what to use instead.
_DEPRECATED = {
    "Replay": (
        "_simulate",
        "SimulatedSearch",
        "the object that accelerando.search.simulate returns",
    ),
    "hyperband_brackets": ("_plan", "hyperband_brackets", "HyperbandSearchCV(...).metadata"),
}

if not TYPE_CHECKING:  # type checkers should report names that do not exist

    def __getattr__(name):
        import importlib
        import warnings

        if name not in _DEPRECATED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute, replacement = _DEPRECATED[name]
        warnings.warn(
            f"{__name__}.{name} is deprecated and will be removed in version 0.3. Use "
            f"{replacement} instead.",
            FutureWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
