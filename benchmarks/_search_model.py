"""The model of the overhead benchmark: it sleeps. Also imported by peers' own environments."""

import time

from sklearn.base import BaseEstimator


class Sleeper(BaseEstimator):
    """Its score is known from its parameter and its calls; a call takes ``seconds``."""

    def __init__(self, quality=0.5, seconds=0.0):
        self.quality = quality
        self.seconds = seconds

    def fit(self, X, y=None):
        return self.partial_fit(X, y)

    def partial_fit(self, X, y=None, classes=None):
        if self.seconds:
            time.sleep(self.seconds)
        self.calls_ = getattr(self, "calls_", 0) + 1
        return self

    def score(self, X, y=None):
        return self.quality * (1 - 0.9**self.calls_)
