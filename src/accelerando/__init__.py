"""accelerando: the adaptive machine-learning loop, gradually faster.

Importing it starts nothing and loads nothing heavy; PyTorch comes with the first estimator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerando._version import __version__ as __version__

if TYPE_CHECKING:
    from accelerando import batch_size as batch_size
    from accelerando import compress as compress
    from accelerando import cost as cost
    from accelerando import crowd as crowd
    from accelerando import exceptions as exceptions
    from accelerando import monitor as monitor
    from accelerando import plot as plot
    from accelerando import policies as policies
    from accelerando import search as search
    from accelerando import sync as sync
    from accelerando.estimators import NeuralNet as NeuralNet
    from accelerando.estimators import NeuralNetBinaryClassifier as NeuralNetBinaryClassifier
    from accelerando.estimators import NeuralNetClassifier as NeuralNetClassifier
    from accelerando.estimators import NeuralNetRegressor as NeuralNetRegressor

__all__ = [
    "NeuralNet",
    "NeuralNetBinaryClassifier",
    "NeuralNetClassifier",
    "NeuralNetRegressor",
    "__version__",
]

# `import accelerando as acc; acc.search` works without another import.
_PACKAGES = (
    "batch_size",
    "compress",
    "cost",
    "crowd",
    "exceptions",
    "monitor",
    "plot",
    "policies",
    "search",
    "sync",
)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"accelerando.{name}")
    if name in __all__:
        return getattr(import_module("accelerando.estimators"), name)
    raise AttributeError(f"module 'accelerando' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
