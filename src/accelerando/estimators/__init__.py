"""The scikit-learn face of training: estimators for PyTorch modules."""

from accelerando.estimators._public import NeuralNet as NeuralNet
from accelerando.estimators._public import NeuralNetClassifier as NeuralNetClassifier
from accelerando.estimators._public import NeuralNetRegressor as NeuralNetRegressor

__all__ = ["NeuralNet", "NeuralNetClassifier", "NeuralNetRegressor"]
