"""Figure 2.5: one real search, replayed on 1 to 32 workers.

The search of §2.5.2 in small: an auto-encoder (PyTorch through skorch) learns to remove noise from
scikit-learn's 8 x 8 digits; the space of A.3.2, max_iter 243, patience=True. Its history is then
replayed with calls of 1 second and scores of 1.5 seconds.

    python benchmarks/hyperband_scaling.py [--quick]
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace

import numpy as np
import torch
from scipy.stats import loguniform, uniform
from sklearn.datasets import load_digits
from skorch import NeuralNetRegressor
from torch import nn

from _search_common import publish, table
from accelerando.search import HyperbandSearchCV, simulate
from accelerando.search._plan import halving_bracket

WORKERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
FIT, SCORE = 1.0, 1.5  # seconds of a call and of a score in the replay
ACTIVATIONS = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU}


class Autoencoder(nn.Module):
    def __init__(self, activation="relu", init="xavier"):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 24), ACTIVATIONS[activation](), nn.Linear(24, 64), nn.Sigmoid()
        )
        start = {"xavier": nn.init.xavier_uniform_, "kaiming": nn.init.kaiming_uniform_}[init]
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                start(layer.weight)

    def forward(self, X):
        return self.layers(X)


def negative_loss(model, X, y):
    return -float(np.mean((model.predict(X) - y) ** 2))


def noisy_digits(repeats: int = 2, seed: int = 0):
    clean = np.repeat(load_digits().data / 16, repeats, axis=0).astype(np.float32)
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.1, 0.5, size=(len(clean), 1))
    noisy = clean + spread * rng.normal(size=clean.shape)
    return noisy.clip(0, 1).astype(np.float32), clean


def spaces():
    common = {
        "module__activation": list(ACTIVATIONS),
        "module__init": ["xavier", "kaiming"],
        "batch_size": [32, 64, 128, 256, 512],
        "optimizer__lr": loguniform(10**-1.5, 10),
        "optimizer__weight_decay": [0.0, *np.logspace(-5, -3, 5)],
    }
    sgd = {
        **common,
        "optimizer": [torch.optim.SGD],
        "optimizer__momentum": uniform(0, 1),
        "optimizer__nesterov": [False],
    }
    adam = {**common, "optimizer": [torch.optim.Adam]}
    return [sgd] * 5 + [adam] * 2  # SGD in five of seven


class FiveBrackets(HyperbandSearchCV):
    """The brackets that Figure 2.1 prints for max_iter 243; Algorithm 1 has six."""

    def _brackets(self):
        starts = [(4, 81, 3), (3, 34, 9), (2, 15, 27), (1, 8, 81), (0, 5, 243)]
        return tuple(
            replace(halving_bracket(n_models, calls, 3, 243), index=index)
            for index, n_models, calls in starts
        )


def record(max_iter: int, cls: type = HyperbandSearchCV) -> HyperbandSearchCV:
    net = NeuralNetRegressor(
        Autoencoder,
        criterion=nn.MSELoss,
        max_epochs=1,
        train_split=None,
        verbose=0,
        callbacks__print_log=None,
        callbacks__train_loss=None,
        callbacks__valid_loss=None,
        callbacks__epoch_timer=None,
    )
    search = cls(
        net,
        spaces(),
        max_iter=max_iter,
        patience=True,
        scoring=negative_loss,
        random_state=0,
        chunk_size=128,
        slice_seconds=1e9,  # scores of the plan only: the replay has its own clock
        client=None,
    )
    return search.fit(*noisy_digits())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="max_iter 81, under two minutes")
    arguments = parser.parse_args()
    max_iter = 81 if arguments.quick else 243
    torch.set_num_threads(1)
    plans = {"Algorithm 1": HyperbandSearchCV}
    if not arguments.quick:
        plans["five brackets of Figure 2.1"] = FiveBrackets
    results = {}
    for name, cls in plans.items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # models whose loss is not finite are part of the search
            search = record(max_iter, cls)
        results[name] = replay(search)
        results[name]["recording_seconds"] = time.perf_counter() - start
        print(f"\n{name}: {search.metadata_['partial_fit_calls']} of "
              f"{search.metadata['partial_fit_calls']} calls, loss {-search.best_score_:.4f}; "
              f"no schedule is faster than {results[name]['limit_speedup']:.1f} x")  # fmt: skip
        heads = ["workers", "minutes", "speed-up", "per worker", "s to 5 % of best"]
        print(table(heads, [list(entry.values()) for entry in results[name]["replays"]]))
    publish(
        "hyperband_scaling",
        {
            "max_iter": max_iter,
            "patience": True,
            "fit_seconds": FIT,
            "score_seconds": SCORE,
            "results": results,
        },
        "torch",
        "skorch",
    )


def replay(search: HyperbandSearchCV) -> dict:
    goal = search.best_score_ * 1.05  # negative loss: within five per cent of the best
    entries = []
    for n_workers in WORKERS:
        one = simulate(search, n_workers, fit_seconds=FIT, score_seconds=SCORE)
        entries.append(
            {
                "workers": n_workers,
                "minutes": one.seconds / 60,
                "speedup": one.speedup,
                "speedup_per_worker": one.speedup / n_workers,
                "seconds_to_5_percent_of_best": one.seconds_to(goal),
            }
        )
    longest = max(
        rows[-1]["partial_fit_calls"] * FIT + len(rows) * SCORE
        for rows in search.model_history_.values()
    )
    return {
        "calls": search.metadata_["partial_fit_calls"],
        "planned_calls": search.metadata["partial_fit_calls"],
        "best_score": search.best_score_,
        "limit_speedup": one.work_seconds / longest,
        "replays": entries,
    }


if __name__ == "__main__":
    main()
