"""Hyperparameter search for estimators with ``partial_fit``: Hyperband and related algorithms."""

from typing import TYPE_CHECKING

from accelerando._extras import require as _require

_require("search", "accelerando.search")

from accelerando._deprecation import Deprecated as _Deprecated
from accelerando._deprecation import deprecated_names as _deprecated_names
from accelerando.search._asha import AsyncHalvingSearchCV
from accelerando.search._hyperband import HyperbandSearchCV
from accelerando.search._incremental import IncrementalSearchCV, InverseDecaySearchCV
from accelerando.search._plan import hyperband_inputs
from accelerando.search._simulate import simulate
from accelerando.search._successive import SuccessiveHalvingSearchCV
from accelerando.search._warm import WarmStart

__all__ = [
    "AsyncHalvingSearchCV",
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
    "SuccessiveHalvingSearchCV",
    "WarmStart",
    "hyperband_inputs",
    "simulate",
]

if not TYPE_CHECKING:  # type checkers should report names that do not exist
    __getattr__ = _deprecated_names(
        __name__,
        {
            "Replay": _Deprecated(
                "accelerando.search._simulate",
                "SimulatedSearch",
                "Use the object that accelerando.search.simulate returns.",
            ),
            "RandomIncrementalSearchCV": _Deprecated(
                "accelerando.search._incremental",
                "IncrementalSearchCV",
                "Use IncrementalSearchCV.",
            ),
            "hyperband_brackets": _Deprecated(
                "accelerando.search._plan",
                "hyperband_brackets",
                "Use HyperbandSearchCV(...).metadata.",
            ),
        },
    )
