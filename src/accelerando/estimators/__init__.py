"""The scikit-learn face of training: estimators for PyTorch modules."""

from accelerando.estimators._classifier import NeuralNetClassifier as NeuralNetClassifier
from accelerando.estimators._neural_net import NeuralNet as NeuralNet
from accelerando.estimators._regressor import NeuralNetRegressor as NeuralNetRegressor

__all__ = ["NeuralNet", "NeuralNetClassifier", "NeuralNetRegressor"]
