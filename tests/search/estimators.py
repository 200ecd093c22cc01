"""Estimators for tests: small, exact, and odd in one way each."""

import os
import signal
import threading
import time

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin


class Counter(RegressorMixin, BaseEstimator):
    """Its score is what the parameters say: ``slope * calls + offset``, known without training."""

    def __init__(self, slope=1.0, offset=0.0, seconds=0.0):
        self.slope = slope
        self.offset = offset
        self.seconds = seconds

    def partial_fit(self, X, y=None):
        time.sleep(self.seconds)
        self.calls_ = getattr(self, "calls_", 0) + 1
        self.n_features_in_ = X.shape[1]
        self.rows_ = [*getattr(self, "rows_", []), len(X)]
        return self

    def score(self, X, y=None):
        return self.slope * self.calls_ + self.offset

    def predict(self, X):
        return np.full(len(X), self.slope)


class Raises(Counter):
    """Raises in ``partial_fit`` when its slope is above one half."""

    def partial_fit(self, X, y=None):
        if self.slope > 0.5 and getattr(self, "calls_", 0) == 1:
            raise FloatingPointError("the loss is infinite")
        return super().partial_fit(X, y)


class ScoresNaN(Counter):
    """The better it would be, the more its score is missing."""

    def score(self, X, y=None):
        return float("nan") if self.slope > 0.5 else super().score(X, y)


class Unpicklable(Counter):
    """Holds something that no pickle can hold."""

    def __init__(self, slope=1.0, offset=0.0, seconds=0.0, lock=None):
        super().__init__(slope, offset, seconds)
        self.lock = lock

    def partial_fit(self, X, y=None):
        self.lock_ = threading.Lock()
        return super().partial_fit(X, y)


class LearnsOne(ClassifierMixin, BaseEstimator):
    """River's way: one row at a time, no ``classes`` argument. A count per class."""

    def __init__(self, prior=1.0):
        self.prior = prior

    def partial_fit(self, X, y):
        for row, label in zip(X, y, strict=True):
            self.learn_one(row, label)
        self.classes_ = np.array(sorted(self.counts_))
        return self

    def learn_one(self, row, label):
        if not hasattr(self, "counts_"):
            self.counts_ = {}
        self.counts_[label] = self.counts_.get(label, self.prior) + 1

    def predict(self, X):
        best = max(sorted(self.counts_), key=self.counts_.get)
        return np.full(len(X), best)


class Logged(Counter):
    """Writes a line for every call it makes: slope, call, process."""

    def __init__(self, slope=1.0, offset=0.0, seconds=0.0, log=None):
        super().__init__(slope, offset, seconds)
        self.log = log

    def partial_fit(self, X, y=None):
        super().partial_fit(X, y)
        if self.log is not None:
            with open(self.log, "a") as log:
                log.write(f"{self.slope!r} {self.calls_} {os.getpid()}\n")
        return self


class Suicidal(Logged):
    """Kills its worker in call number ``at``.

    With ``flag`` only the first model that gets there does so: a file remembers that it was done.
    With ``cue`` it waits for that file before it dies.
    """

    def __init__(
        self, slope=1.0, offset=0.0, seconds=0.0, log=None, flag=None, cue=None, at=2, fatal=False
    ):
        super().__init__(slope, offset, seconds, log)
        self.flag = flag
        self.cue = cue
        self.at = at
        self.fatal = fatal

    def partial_fit(self, X, y=None):
        if self.fatal and getattr(self, "calls_", 0) == self.at - 1 and self._first():
            while self.cue is not None and not os.path.exists(self.cue):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().partial_fit(X, y)

    def _first(self):
        if self.flag is None:
            return True
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
