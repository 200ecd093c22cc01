"""accelerando: the adaptive machine-learning loop, gradually faster.

Importing it starts nothing and loads nothing heavy; PyTorch comes with the first estimator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerando._version import __version__ as __version__

if TYPE_CHECKING:
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

_HOMES = {
    "NeuralNet": "accelerando.estimators",
    "NeuralNetBinaryClassifier": "accelerando.estimators",
    "NeuralNetClassifier": "accelerando.estimators",
    "NeuralNetRegressor": "accelerando.estimators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'accelerando' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
