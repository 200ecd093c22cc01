"""The scikit-learn face of training: estimators for PyTorch modules."""

from accelerando._extras import require as _require

_require("train", "accelerando.NeuralNet")

from accelerando.estimators._binary_classifier import (
    NeuralNetBinaryClassifier as NeuralNetBinaryClassifier,
)
from accelerando.estimators._classifier import NeuralNetClassifier as NeuralNetClassifier
from accelerando.estimators._neural_net import NeuralNet as NeuralNet
from accelerando.estimators._regressor import NeuralNetRegressor as NeuralNetRegressor

__all__ = ["NeuralNet", "NeuralNetBinaryClassifier", "NeuralNetClassifier", "NeuralNetRegressor"]
