"""Three tuning tasks trained for real: our Hyperband, Optuna's TPE with its Hyperband pruner, and
scikit-learn's successive halving.

All have two worker processes, the same validation rows, and the same budget: they end at the number
of calls that our plan has, or after a number of seconds, whichever comes first. A call is one pass
of a network, or some boosted trees. scikit-learn trains survivors from the beginning in each rung,
and these calls count. Compared are the best validation score over five seeds, and the seconds until
the mean final score of the better peer is reached.

    python benchmarks/search_real.py --data DIR [--quick]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from _search_common import publish, table
from _search_tasks import Task, tasks
from accelerando.search import HyperbandSearchCV

Trace = list[tuple[float, float]]  # (seconds, score), in the order of time
WORKERS = 2


def ours(task: Task, seed: int, max_iter: int, calls: int, seconds: float, client) -> Trace:
    search = HyperbandSearchCV(
        task.estimator, task.distributions, max_iter=max_iter, random_state=seed, client=client,
        validation_data=task.validation, max_calls=calls, max_seconds=seconds,
    )  # fmt: skip
    search.fit(*task.train)
    return [(row["elapsed_wall_time"], row["score"]) for row in search.history_]


# -- Optuna ---------------------------------------------------------------------------------------


def optuna_worker(
    task: Task, storage: str, seed: int, max_iter: int, calls: int, end: float
) -> Trace:
    """One of two processes that share a study; runs until the budget of both is used."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(storage)), study_name="study",
        load_if_exists=True, direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(1, max_iter, 3),
    )  # fmt: skip
    trace: Trace = []

    def objective(trial):
        model = clone(task.estimator).set_params(**task.suggest(trial))
        score = math.nan
        for call in range(1, max_iter + 1):
            if time.time() >= end:
                raise optuna.TrialPruned
            model.partial_fit(*task.train)
            score = float(model.score(*task.validation))
            trace.append((time.time(), score))
            trial.report(score, call)
            if trial.should_prune():
                raise optuna.TrialPruned
        return score

    def made() -> int:
        return sum(len(trial.intermediate_values) for trial in study.get_trials(deepcopy=False))

    while time.time() < end and made() < calls:
        study.optimize(objective, n_trials=1)
    return trace


def optuna_search(
    task: Task, seed: int, max_iter: int, calls: int, seconds: float, client
) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        storage = os.path.join(folder, "journal")
        futures = [
            client.submit(
                optuna_worker, task, storage, 2 * seed + i, max_iter, calls, began + seconds,
                workers=[worker], pure=False,
            )
            for i, worker in enumerate(client.scheduler_info(n_workers=-1)["workers"])
        ]  # fmt: skip
        traces = client.gather(futures)
    return sorted((at - began, score) for trace in traces for at, score in trace)


# -- scikit-learn ---------------------------------------------------------------------------------


class InCalls(ClassifierMixin, BaseEstimator):
    """An estimator whose ``fit`` makes `calls` calls, as scikit-learn's halving needs it."""

    def __init__(self, estimator=None, calls=1, end=math.inf, log=None):
        self.estimator = estimator
        self.calls = calls
        self.end = end
        self.log = log

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.model_ = clone(self.estimator)
        for _ in range(self.calls):
            if time.time() >= self.end:  # scikit-learn has no limit of its own
                self.model_ = None
                break
            self.model_.partial_fit(X, y)
        return self

    def score(self, X, y):
        if self.model_ is None:
            return 0.0
        score = float(self.model_.score(X, y))
        with open(self.log, "a") as log:  # by two processes
            log.write(f"{time.time()!r} {score!r}\n")
        return score

    def predict(self, X):
        return self.model_.predict(X)


def sklearn_search(
    task: Task, seed: int, max_iter: int, calls: int, seconds: float, client
) -> Trace:
    from joblib import Parallel, delayed
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.model_selection import HalvingRandomSearchCV

    del client  # it has processes of its own, as many; they are started before the clock
    warm = clone(task.estimator)
    Parallel(WORKERS)(delayed(warm.partial_fit)(*task.train) for _ in range(2 * WORKERS))
    rungs = 1 + round(math.log(max_iter, 3))
    X, y = (
        np.concatenate(pair) for pair in zip(task.train, task.validation, strict=True)
    )  # one fold: the validation rows that all have
    fold = [(np.arange(len(task.train[0])), np.arange(len(task.train[0]), len(X)))]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = Path(folder) / "log"
        log.touch()
        began = time.time()
        search = HalvingRandomSearchCV(
            InCalls(task.estimator, end=began + seconds, log=str(log)),
            {f"estimator__{name}": values for name, values in task.distributions.items()},
            n_candidates=calls // rungs, resource="calls", min_resources=1,
            max_resources=max_iter, factor=3, cv=fold, refit=False, random_state=seed,
            n_jobs=WORKERS, error_score=0.0, return_train_score=False,
        )  # fmt: skip
        search.fit(X, y)
        lines = [line.split() for line in log.read_text().splitlines()]
    return sorted((float(at) - began, float(score)) for at, score in lines)


# -- comparison -----------------------------------------------------------------------------------

SEARCHES = {"ours": ours, "Optuna": optuna_search, "scikit-learn": sklearn_search}


def seconds_to(trace: Trace, target: float) -> float:
    """Return when a score was reached; infinity if it never was."""
    return min((at for at, score in trace if score >= target), default=math.inf)


def best(trace: Trace) -> float:
    return max((score for _, score in trace if not math.isnan(score)), default=math.nan)


def compare(traces: dict[str, list[Trace]]) -> list[dict]:
    """Return a row per search: final scores and the median time to the better peer's mean."""
    final = {name: [best(trace) for trace in runs] for name, runs in traces.items()}
    target = max(float(np.mean(final[name])) for name in final if name != "ours")
    return [
        {
            "search": name,
            "scores": scores,
            "mean": float(np.mean(scores)),
            "spread": float(np.std(scores)),
            "target": target,
            "seconds_to_target": float(
                np.median([seconds_to(trace, target) for trace in traces[name]])
            ),
            "seconds": float(np.mean([trace[-1][0] for trace in traces[name] if trace])),
        }
        for name, scores in final.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short version, under two minutes")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", required=True,
        help="folder with covertype.npz and fashion_mnist.npz",
    )  # fmt: skip
    options = parser.parse_args()
    max_iter, seconds, seeds = (9, 6.0, [0]) if options.quick else (27, 75.0, [0, 1, 2, 3, 4])
    rows = []
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for module in ("accelerando.search", "optuna", "_search_tasks"):
            client.run(__import__, module)  # not a cost of a search
        for task in tasks(options.data, quick=options.quick):
            plan = HyperbandSearchCV(task.estimator, task.distributions, max_iter=max_iter)
            calls = plan.metadata["partial_fit_calls"]
            traces = {name: [] for name in SEARCHES}
            for worker in client.scheduler_info(n_workers=-1)["workers"]:  # as scikit-learn's are
                warm = clone(task.estimator).partial_fit
                client.submit(warm, *task.train, workers=[worker], pure=False).result()
            for seed in seeds:
                for name, search in SEARCHES.items():
                    trace = search(task, seed, max_iter, calls, seconds, client)
                    traces[name].append(trace)
            rows += [{"task": task.name, **row} for row in compare(traces)]
    shown = ("task", "search", "mean", "spread", "seconds_to_target", "seconds")
    print(table(list(shown), [[row[name] for name in shown] for row in rows]))
    publish("search_real", {"rows": rows, "max_iter": max_iter, "limit": seconds}, "optuna")


if __name__ == "__main__":
    main()
