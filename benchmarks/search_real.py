"""Three tuning tasks trained for real: our searches, Optuna's TPE with its Hyperband pruner, and
scikit-learn's successive halving.

All have two worker processes, the same validation rows, and the same budget: they end at the number
of calls that the plan of Hyperband has, or after a number of seconds, whichever comes first. A call
is one pass of a network, or some boosted trees. scikit-learn trains survivors from the beginning in
each rung, and these calls count; it makes up to 6 % more calls than the budget, because its rungs
are rounded up, and Optuna ends the trials that have begun.

Three searches of ours are compared: Hyperband as it is by default, Hyperband with ``sampler="tpe"``
(as Optuna's) and successive halving with as many models as the budget allows (as scikit-learn's).

Compared are the best validation score over five seeds, and the seconds until the mean final score
of the better peer is reached. The full run takes about 35 minutes on two idle cores. It can be
done in parts: with ``--traces FILE`` every search is kept in the file as soon as it has ended, and
is not run again. ``--task`` and ``--seed`` choose what one part runs, such as one seed of one task,
which takes two to three minutes, and ``--minutes`` starts no search that could end later. All tasks
have one seed before one has two, and the order of the searches rotates with the seed, so that what
the machine does meanwhile favors none. The results are written after each seed of a task, from all
that the file holds. On a busy machine ``--limit 100000`` leaves only the budget of calls, so that
the scores, but not the seconds, are those of an idle machine.

    python benchmarks/search_real.py --data DIR [--quick] [--traces FILE] [--task NAME] [--seed N]
                                     [--limit SECONDS] [--minutes MINUTES]
"""

from __future__ import annotations

import argparse
import functools
import json
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
from accelerando.search import HyperbandSearchCV, SuccessiveHalvingSearchCV
from accelerando.search._plan import halving_bracket

Trace = list[tuple[float, float]]  # (seconds, score), in the order of time
WORKERS = 2


def ours(
    task: Task, seed: int, max_iter: int, calls: int, seconds: float, client,
    kind=HyperbandSearchCV, **options,
) -> Trace:  # fmt: skip
    search = kind(
        task.estimator, task.distributions, max_iter=max_iter, random_state=seed, client=client,
        validation_data=task.validation, max_calls=calls, max_seconds=seconds, **options,
    )  # fmt: skip
    search.fit(*task.train)
    return [(row["elapsed_wall_time"], row["score"]) for row in search.history_]


def ours_halving(task: Task, seed: int, max_iter: int, calls: int, seconds: float, client) -> Trace:
    """Successive halving from one call on, with as many models as the budget allows."""
    n_models = max(
        n for n in range(1, calls + 1)
        if halving_bracket(n, 1, 3, max_iter).partial_fit_calls <= calls
    )  # fmt: skip
    return ours(
        task, seed, max_iter, calls, seconds, client,
        kind=SuccessiveHalvingSearchCV, n_initial_parameters=n_models, n_initial_iter=1,
    )  # fmt: skip


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
            if time.time() >= self.end:  # scikit-learn has no such limit
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
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.model_selection import HalvingRandomSearchCV

    del client  # it has its own processes, as many
    rungs = 1 + round(math.log(max_iter, 3))
    X, y = (
        np.concatenate(pair) for pair in zip(task.train, task.validation, strict=True)
    )  # one fold: the validation rows that all have
    fold = [(np.arange(len(task.train[0])), np.arange(len(task.train[0]), len(X)))]

    def search(n_models: int, most: int, end: float, log: Path) -> None:
        log.touch()
        HalvingRandomSearchCV(
            InCalls(task.estimator, end=end, log=str(log)),
            {f"estimator__{name}": values for name, values in task.distributions.items()},
            n_candidates=n_models, resource="calls", min_resources=1,
            max_resources=most, factor=3, cv=fold, refit=False, random_state=seed,
            n_jobs=WORKERS, error_score=0.0, return_train_score=False,
        ).fit(X, y)  # fmt: skip

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Its processes start and import before the clock does, as those of the others.
        search(2 * WORKERS, 1, math.inf, Path(folder) / "warm")
        log, began = Path(folder) / "log", time.time()
        search(calls // rungs, max_iter, began + seconds, log)
        lines = [line.split() for line in log.read_text().splitlines()]
    return sorted((float(at) - began, float(score)) for at, score in lines)


# -- comparison -----------------------------------------------------------------------------------

SEARCHES = {
    "ours": ours,
    "ours, tpe": functools.partial(ours, sampler="tpe"),
    "ours, halving": ours_halving,
    "Optuna": optuna_search,
    "scikit-learn": sklearn_search,
}
PEERS = ("Optuna", "scikit-learn")


def seconds_to(trace: Trace, target: float) -> float:
    """Return when a score was reached; infinity if it never was."""
    return min((at for at, score in trace if score >= target), default=math.inf)


def best(trace: Trace) -> float:
    return max((score for _, score in trace if not math.isnan(score)), default=math.nan)


def compare(traces: dict[str, list[Trace]]) -> list[dict]:
    """Return a row per search: final scores and the median time to the better peer's mean."""
    final = {name: [best(trace) for trace in runs] for name, runs in traces.items()}
    target = float(np.nanmax([-math.inf, *(np.mean(final[name]) for name in PEERS)]))
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
            "seconds": float(
                np.mean([trace[-1][0] if trace else math.nan for trace in traces[name]])
            ),
        }
        for name, scores in final.items()
    ]


def verdicts(rows: list[dict]) -> list[dict]:
    """Return for each search of ours where it is behind a peer by more than the spread, and ahead.

    The spread is the larger one of the two that are compared.
    """
    listed = []
    names = {row["task"]: None for row in rows}
    for name in (one for one in SEARCHES if one not in PEERS):
        behind, ahead = [], []
        for task in names:
            of = {row["search"]: row for row in rows if row["task"] == task}
            best = max((of[peer] for peer in PEERS), key=lambda row: np.nan_to_num(row["mean"]))
            if of[name]["mean"] < best["mean"] - max(of[name]["spread"], best["spread"]):
                behind.append(task)
            if of[name]["seconds_to_target"] < min(of[peer]["seconds_to_target"] for peer in PEERS):
                ahead.append(task)
        listed.append({"search": name, "behind": behind, "ahead": ahead})
    return listed


class Traces:
    """The traces of the searches that have ended, also those of earlier parts.

    Parameters
    ----------
    path : path, optional
        The file that keeps them.
    settings : dict
        What all parts must have in common.
    """

    def __init__(self, path: Path | None, settings: dict) -> None:
        self.path = path
        self.settings = settings
        self.of: dict[str, Trace] = {}
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            if kept["settings"] != settings:
                raise SystemExit(f"{path} has the settings {kept['settings']}, not {settings}.")
            self.of = kept["traces"]

    @staticmethod
    def key(task: str, seed: int, search: str) -> str:
        return f"{task} | {seed} | {search}"

    def add(self, key: str, trace: Trace) -> None:
        self.of[key] = trace
        if self.path is not None:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"settings": self.settings, "traces": self.of}))
            part.replace(self.path)

    def seeds(self, task: str, seeds: list[int]) -> list[int]:
        """Return the seeds for which all searches have ended."""
        return [
            seed for seed in seeds if all(self.key(task, seed, one) in self.of for one in SEARCHES)
        ]

    def rows(self, task: str, seeds: list[int]) -> list[dict]:
        """Return a row per search, over the seeds that are complete."""
        complete = self.seeds(task, seeds)
        if not complete:
            return []
        traces = {
            name: [self.of[self.key(task, seed, name)] for seed in complete] for name in SEARCHES
        }
        return [{"task": task, "seeds": len(complete), **row} for row in compare(traces)]


def run_seed(task: Task, seed: int, traces: Traces, client, began: float, end: float) -> None:
    """Run the searches of one seed that have not ended before, and that end before `end`."""
    max_iter, seconds = traces.settings["max_iter"], traces.settings["limit"]
    names = [*SEARCHES]
    rotated = names[seed % len(names) :] + names[: seed % len(names)]
    todo = [name for name in rotated if traces.key(task.name, seed, name) not in traces.of]
    if not todo:
        return
    plan = HyperbandSearchCV(task.estimator, task.distributions, max_iter=max_iter)
    calls = plan.metadata["partial_fit_calls"]
    for worker in client.scheduler_info(n_workers=-1)["workers"]:  # as scikit-learn's are
        warm = clone(task.estimator).partial_fit
        client.submit(warm, *task.train, workers=[worker], pure=False).result()
    for name in todo:
        if time.time() + seconds > end:
            return
        trace = SEARCHES[name](task, seed, max_iter, calls, seconds, client)
        traces.add(traces.key(task.name, seed, name), trace)
        after = f"{best(trace):.4f} after {trace[-1][0]:.1f} s" if trace else "no score in time"
        print(
            f"{time.time() - began:6.0f} s  {task.name}, seed {seed}, {name}: {after}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short version, under two minutes")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", required=True,
        help="folder with covertype.npz and fashion_mnist.npz",
    )  # fmt: skip
    parser.add_argument("--traces", type=Path, metavar="FILE", help="what earlier parts have done")
    parser.add_argument("--task", metavar="NAME", help="run one task, such as 'digits boosting'")
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="of each search; by default 60, or 6 if quick",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="of all searches; the rest is left for later",
    )
    options = parser.parse_args()
    max_iter, seconds, seeds = (9, 6.0, [0]) if options.quick else (27, 60.0, [0, 1, 2, 3, 4])
    seconds = seconds if options.limit is None else options.limit
    listed = tasks(options.data, quick=options.quick)
    names = [task.name for task in listed]
    if options.task not in (None, *names):
        parser.error(f"--task must be one of {names}. Got {options.task!r} instead.")
    if options.seed not in (None, *seeds):
        parser.error(f"--seed must be one of {seeds}. Got {options.seed} instead.")
    traces = Traces(options.traces, {"max_iter": max_iter, "limit": seconds})
    began = time.time()
    end = began + 60 * options.minutes

    def write() -> list[dict]:
        rows = [row for name in names for row in traces.rows(name, seeds)]
        complete = all(traces.seeds(name, seeds) == seeds for name in names)
        payload = {"rows": rows, "verdicts": verdicts(rows), "complete": complete}
        publish("search_real", {**payload, **traces.settings}, "optuna")
        return rows

    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for module in ("accelerando.search", "optuna", "_search_tasks"):
            client.run(__import__, module)  # not a cost of a search
        for seed in seeds:
            for task in listed:
                if options.task in (None, task.name) and options.seed in (None, seed):
                    run_seed(task, seed, traces, client, began, end)
                    rows = write()
    shown = ("task", "search", "mean", "spread", "seconds_to_target", "seconds")
    print(table(list(shown), [[row[name] for name in shown] for row in rows]))
    for verdict in verdicts(rows):
        print(f"{verdict['search']}: behind {verdict['behind']}, ahead {verdict['ahead']}")


if __name__ == "__main__":
    main()
