"""Second block of the demo: Hyperband against random search, with equally many calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ITER = 27  # calls of partial_fit for a model that is trained to the end

# Best accuracy so far after 1, 2, 3, … calls: one curve per seed, by the name of the search.
Searches = dict[str, list["NDArray[np.float64]"]]


def space() -> dict[str, Any]:
    """Return the search space: five hyperparameters of a small network."""
    from scipy.stats import loguniform, uniform

    return {
        "learning_rate_init": loguniform(1e-4, 1),
        "momentum": uniform(0, 1),
        "batch_size": [32, 64, 128, 256, 512],
        "alpha": loguniform(1e-6, 1e-1),
        "hidden_layer_sizes": [(24,), (12, 12), (6, 6, 6, 6), (12, 6, 3, 3)],
    }


def search(seeds: Iterable[int], report: Callable[[str], None] = lambda text: None) -> Searches:
    """Search once with each method and seed, on handwritten digits.

    Random search trains as many models to the end as Hyperband's calls suffice for.
    """
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    from accelerando.search import HyperbandSearchCV, IncrementalSearchCV

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    curves: Searches = {"random search": [], "Hyperband": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks with large learning rates diverge
        for seed in seeds:
            network = MLPClassifier(solver="sgd", random_state=seed)
            shared: Any = {"max_iter": MAX_ITER, "random_state": seed, "client": None}
            report(f"Searching with Hyperband, seed {seed}")
            hyperband = HyperbandSearchCV(network, space(), **shared)
            calls = hyperband.metadata["partial_fit_calls"]
            curves["Hyperband"].append(best_so_far(hyperband.fit(X, y).history_))
            report(f"Searching at random, seed {seed}")
            at_random = IncrementalSearchCV(
                network,
                space(),
                n_initial_parameters=max(1, calls // MAX_ITER),
                priority="fifo",
                slice_seconds=1e9,  # one model after the other
                **shared,
            )
            curves["random search"].append(best_so_far(at_random.fit(X, y).history_))
    return curves


def best_so_far(history: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
    """Return the best score after each call of ``partial_fit``; zero before the first score.

    >>> best_so_far([{"model_id": 0, "partial_fit_calls": 2, "score": 0.5},
    ...              {"model_id": 1, "partial_fit_calls": 1, "score": 0.4}]).tolist()
    [0.0, 0.5, 0.5]
    """
    done: dict[Any, int] = {}
    curve: list[float] = []
    best = 0.0
    for row in history:
        new = row["partial_fit_calls"] - done.get(row["model_id"], 0)
        done[row["model_id"]] = row["partial_fit_calls"]
        curve += [best] * new
        best = max(best, row["score"])
        curve[-1] = best
    return np.array(curve)


def mean_curve(curves: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean over seeds, up to the end of the shortest curve."""
    length = min(map(len, curves))
    mean: NDArray[np.float64] = np.mean([curve[:length] for curve in curves], axis=0)
    return mean


def calls_to(curve: NDArray[np.float64], score: float) -> int | None:
    """Return the number of calls until a curve reaches a score; None if it does not.

    >>> calls_to(np.array([0.1, 0.5, 0.9]), 0.5), calls_to(np.array([0.1]), 0.5)
    (2, None)
    """
    above = np.flatnonzero(curve >= score)
    return int(above[0]) + 1 if len(above) else None
