"""The task of §2.5.1, and its learning curves, recorded once.

Four circles with 6 features, scikit-learn's MLPClassifier, the search space of A.3.1 and the inputs
of the rule of thumb, in the size of the dissertation: 60,000 examples, 10,000 of them to validate.
The dissertation does not print the radii; these are the ones of its published experiment
(github.com/stsievert/dask-hyperband-comparison): two of scikit-learn's pairs of circles with noise
0.04, the second pair 0.6 to the right, and four features of uniform noise.

    python benchmarks/_search_circles.py [COUNT]     record configurations up to number COUNT (400)
    python benchmarks/_search_circles.py --check     compare the recorder with MLPClassifier

Recording needs numba, and takes one to two seconds per configuration, which is scored after every
call. It continues where it was when it is started again.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from numba import njit
from scipy.stats import loguniform, uniform
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_circles
from sklearn.neural_network import MLPClassifier
from sklearn.utils import shuffle

from accelerando.search import hyperband_inputs

CURVES = Path(__file__).parent / "results" / "hyperband_curves.npz"
N_EXAMPLES, N_VALIDATION = 60_000, 10_000
EPOCHS, N_PARAMS, AGGRESSIVENESS = 50, 299, 4
INPUTS = hyperband_inputs(
    n_params=N_PARAMS,
    n_examples=N_EXAMPLES - N_VALIDATION,
    epochs=EPOCHS,
    aggressiveness=AGGRESSIVENESS,
)
SPACE = {
    "alpha": loguniform(1e-6, 1e-3),
    "batch_size": [32, 64, 128, 256, 512],
    "learning_rate": ["constant", "invscaling"],
    "learning_rate_init": loguniform(1e-4, 1e-2),
    "power_t": uniform(0.1, 0.8),
    "momentum": uniform(0, 1),
    "hidden_layer_sizes": [(24,), (12, 12), (6, 6, 6, 6), (4, 4, 4, 4, 4, 4), (12, 6, 3, 3)],
}


def four_circles(n: int = N_EXAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two pairs of circles that cross each other, in two of six features; the rest is noise."""
    pairs = [make_circles(n // 2, noise=0.04, random_state=seed + i) for i in range(2)]
    pairs[1][0][:, 0] += 0.6
    rng = np.random.default_rng(seed)
    circles = np.concatenate([points for points, _ in pairs])
    y = np.concatenate([pairs[0][1], pairs[1][1] + 2])
    X = np.hstack([circles, rng.uniform(-1, 1, size=(len(circles), 4))])
    order = rng.permutation(len(X))
    return X[order].astype(np.float32), y[order]


class QuickNetwork(MLPClassifier):
    """MLPClassifier with the same updates, in a compiled loop.

    Nine tenths of the time of so small a network are bookkeeping of MLPClassifier's loop. Weights,
    their start, the order of rows and the updates are its own, up to the rounding of sums
    (``--check``). It must not be copied while it is trained: layers are views into one vector.
    """

    def _fit_stochastic(self, X, y, sample_weight, activations, *rest):
        if not hasattr(self, "_theta"):
            self._flatten()
        order = shuffle(np.arange(len(X)), random_state=self._random_state)
        updates(
            np.ascontiguousarray(X[order].T),
            np.ascontiguousarray(y[order].T.astype(X.dtype)),
            self._units,
            self._theta,
            self._velocity,
            self.batch_size,
            np.float32(self.alpha),
            np.float32(self._rate),
            np.float32(self.momentum),
        )
        self.t_ += len(order)
        if self.learning_rate == "invscaling":
            self._rate = self.learning_rate_init / (self.t_ + 1) ** self.power_t

    def answers(self, columns):
        """Predict classes of examples that are columns."""
        for i, (coef, intercept) in enumerate(zip(self.coefs_, self.intercepts_, strict=True)):
            columns = coef.T @ (np.maximum(columns, 0) if i else columns) + intercept[:, None]
        return columns.argmax(axis=0)

    def _flatten(self):
        """Put all parameters into one vector, layer by layer: weights, then intercepts."""
        pairs = list(zip(self.coefs_, self.intercepts_, strict=True))
        self._theta = np.concatenate([part.ravel() for pair in pairs for part in pair])
        self._velocity = np.zeros_like(self._theta)
        self._units = np.array([len(pairs[0][0]), *(len(intercept) for _, intercept in pairs)])
        self._rate = self.learning_rate_init
        self.coefs_, self.intercepts_ = [], []
        start = 0
        for coef, intercept in pairs:
            end = start + coef.size
            self.coefs_.append(self._theta[start:end].reshape(coef.shape))
            self.intercepts_.append(self._theta[end : end + intercept.size])
            start = end + intercept.size


@njit(fastmath=True, cache=True)
def updates(X, y, units, theta, velocity, batch_size, alpha, rate, momentum):
    """SGD with Nesterov's momentum over all rows. X and y have a row per unit."""
    n_layers, width = len(units) - 1, units.max()
    layers = np.zeros((n_layers + 1, width, batch_size), dtype=np.float32)
    delta = np.zeros((width, batch_size), dtype=np.float32)
    before = np.zeros((width, batch_size), dtype=np.float32)
    slope = np.zeros_like(theta)
    for start in range(0, X.shape[1], batch_size):
        n = min(batch_size, X.shape[1] - start)
        layers[0, : units[0], :n] = X[:, start : start + n]
        at = 0
        for i in range(n_layers):
            n_in, n_out = units[i], units[i + 1]
            for o in range(n_out):
                z = layers[i + 1, o]
                z[:n] = theta[at + n_in * n_out + o]
                for j in range(n_in):
                    weight, rows = theta[at + j * n_out + o], layers[i, j]
                    for b in range(n):
                        z[b] += weight * rows[b]
                if i < n_layers - 1:
                    for b in range(n):
                        z[b] = max(z[b], np.float32(0))
            at += (n_in + 1) * n_out
        for b in range(n):  # softmax
            top = layers[n_layers, 0, b]
            for o in range(1, units[-1]):
                top = max(top, layers[n_layers, o, b])
            total = np.float32(0)
            for o in range(units[-1]):
                delta[o, b] = np.exp(layers[n_layers, o, b] - top)
                total += delta[o, b]
            for o in range(units[-1]):
                delta[o, b] = delta[o, b] / total - y[o, start + b]
        for i in range(n_layers - 1, -1, -1):
            n_in, n_out = units[i], units[i + 1]
            at -= (n_in + 1) * n_out
            for o in range(n_out):
                error = np.float32(0)
                for b in range(n):
                    error += delta[o, b]
                slope[at + n_in * n_out + o] = error / n
                for j in range(n_in):
                    error, rows = np.float32(0), layers[i, j]
                    for b in range(n):
                        error += rows[b] * delta[o, b]
                    k = at + j * n_out + o
                    slope[k] = (error + alpha * theta[k]) / n
            if i == 0:
                break
            for j in range(n_in):
                before[j, :n] = 0
                for o in range(n_out):
                    weight = theta[at + j * n_out + o]
                    for b in range(n):
                        before[j, b] += weight * delta[o, b]
                for b in range(n):
                    if layers[i, j, b] == 0:
                        before[j, b] = 0
            delta[:n_in, :n] = before[:n_in, :n]
        for k in range(len(theta)):
            velocity[k] = momentum * velocity[k] - rate * slope[k]
            theta[k] += momentum * velocity[k] - rate * slope[k]


def check(n_calls: int = 5) -> None:
    """Train some configurations with both, and print how far their parameters are apart."""
    X, y = four_circles()
    for index in range(8):
        pair = [
            cls(solver="sgd", random_state=index, **draw(index))
            for cls in (MLPClassifier, QuickNetwork)
        ]
        for call in range(n_calls):
            rows = slice(8333 * call, 8333 * (call + 1))
            for model in pair:
                model.partial_fit(X[rows], y[rows], classes=[0, 1, 2, 3])
        apart = max(
            float(np.abs(a - b).max()) for a, b in zip(pair[0].coefs_, pair[1].coefs_, strict=True)
        )
        scores = [model.score(X[-N_VALIDATION:], y[-N_VALIDATION:]) for model in pair]
        print(f"configuration {index}: parameters differ by {apart:.1e}, accuracies {scores}")
        assert apart < 1e-3, "the recorder does not train as MLPClassifier does"


def draw(index: int) -> dict:
    """Configuration number ``index`` of the recorded ones."""
    rng = np.random.RandomState(index)
    return {
        name: values.rvs(random_state=rng)
        if hasattr(values, "rvs")
        else values[rng.randint(len(values))]
        for name, values in sorted(SPACE.items())
    }


def record_one(index: int, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Train a configuration; return right answers after every call, and seconds of a call.

    The seconds are those of MLPClassifier, of which two calls are made for it.
    """
    X_val, y_val = X[-N_VALIDATION:], y[-N_VALIDATION:]
    X, y = X[:-N_VALIDATION], y[:-N_VALIDATION]
    chunks = np.array_split(np.arange(len(X)), round(len(X) / INPUTS["chunk_size"]))
    order = np.random.default_rng(0)
    plain, quick = (
        cls(solver="sgd", random_state=index, **draw(index))
        for cls in (MLPClassifier, QuickNetwork)
    )
    seconds = []
    for rows in chunks[:2]:
        start = time.process_time()
        plain.partial_fit(X[rows], y[rows], classes=[0, 1, 2, 3])
        seconds.append(time.process_time() - start)
    right = np.zeros(N_PARAMS, dtype=np.uint16)
    columns, targets = np.ascontiguousarray(X_val.T), np.eye(4, dtype=np.float32)[y]
    for call in range(N_PARAMS):
        if call % len(chunks) == 0:
            turn = order.permutation(len(chunks))
        rows = chunks[turn[call % len(chunks)]]
        if call == 0:
            quick.partial_fit(X[rows], y[rows], classes=[0, 1, 2, 3])
        else:  # what partial_fit does after its checks
            quick._random_state = np.random.RandomState(index)
            quick._fit_stochastic(X[rows], targets[rows], None, None)
        right[call] = np.sum(quick.answers(columns) == y_val)
    return right, min(seconds)


def record(count: int) -> None:
    """Add configurations to the recording until there are ``count``."""
    X, y = four_circles()
    right, seconds = [], []
    if CURVES.exists():
        with np.load(CURVES) as saved:
            right = list(np.cumsum(saved["steps"], axis=1, dtype=np.int64).astype(np.uint16))
            seconds = list(saved["seconds"])
    for index in range(len(right), count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rate may be too high: that is what a search finds
            one, mean = record_one(index, X, y)
        right.append(one)
        seconds.append(mean)
        if index % 5 == 4 or index == count - 1:
            _save(np.array(right), np.array(seconds))
            best = np.max(right, axis=0) / N_VALIDATION
            print(index + 1, "curves; best after 18, 74, 299 calls:", best[[17, 73, 298]],
                  f"; {np.mean(seconds) * 1e3:.1f} ms a call", flush=True)  # fmt: skip


def _save(right: np.ndarray, seconds: np.ndarray) -> None:
    CURVES.parent.mkdir(exist_ok=True)
    part = CURVES.with_suffix(".part.npz")
    # Steps from call to call are small numbers, which compress well.
    steps = np.diff(right.astype(np.int16), axis=1, prepend=np.int16(0))
    np.savez_compressed(part, steps=steps, seconds=seconds)
    os.replace(part, CURVES)


@cache
def curves() -> tuple[np.ndarray, np.ndarray]:
    """Return accuracies (configuration x call), and seconds per call of each configuration."""
    with np.load(CURVES) as saved:
        return np.cumsum(saved["steps"], axis=1) / N_VALIDATION, saved["seconds"]


class Recorded(ClassifierMixin, BaseEstimator):
    """A recorded configuration: training is looking up."""

    def __init__(self, index=0, n_calls=0):
        self.index = index
        self.n_calls = n_calls

    def partial_fit(self, X, y=None):
        self.calls_ = getattr(self, "calls_", 0) + 1
        return self

    def fit(self, X, y=None):  # for scikit-learn's halving, which trains anew at every rung
        self.classes_ = np.unique(y)
        self.calls_ = self.n_calls
        return self

    def score(self, X, y=None):
        return float(curves()[0][self.index, self.calls_ - 1])


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    else:
        record(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
