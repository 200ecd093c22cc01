"""§2.5.1: Hyperband against random search and peers, at an equal number of calls.

Four circles, 6 features, scikit-learn's MLPClassifier, the search space of A.3.1, aggressiveness 4
and the inputs of the rule of thumb (``_search_circles.py``). Configurations were trained once and
scored after every call; every search draws from these and looks its scores up, so that many seeds
cost little and all searches see the same models. ``--real SEEDS`` trains for real, and so adds the
samplers that need the parameters themselves: Optuna's TPE with its Hyperband pruner, and our
``sampler="tpe"``.

    python benchmarks/hyperband_serial.py [--quick] [--seeds 20] [--real 0]
"""

from __future__ import annotations

import argparse
import json
import time
import warnings

import numpy as np
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import HalvingRandomSearchCV

from _search_circles import (
    AGGRESSIVENESS,
    INPUTS,
    N_EXAMPLES,
    N_PARAMS,
    N_VALIDATION,
    SPACE,
    QuickNetwork,
    Recorded,
    curves,
    four_circles,
)
from _search_common import RESULTS, publish, table
from accelerando.search import AsyncHalvingSearchCV, HyperbandSearchCV, IncrementalSearchCV

BUDGET = INPUTS["partial_fit_calls"]
MARKS = (300, 1000, 2000, 4000, BUDGET)
GOALS = (0.8, 0.88, 0.9)
X, Y = np.zeros((10, 1)), np.repeat([0, 1], 5)


def first_at(curve: list[float], goal: float) -> int | None:
    """Calls at which a mean curve, one value per 100 calls, passes ``goal``."""
    return next((100 * i for i, value in enumerate(curve) if value >= goal), None)


class Trace:
    """Best score against calls and seconds."""

    def __init__(self) -> None:
        self.calls, self.seconds, self.best = [0], [0.0], [0.0]

    def add(self, calls: int, seconds: float, score: float) -> None:
        self.calls.append(self.calls[-1] + calls)
        self.seconds.append(self.seconds[-1] + seconds)
        self.best.append(max(self.best[-1], score))

    def at(self, calls: int) -> float:
        return self.best[int(np.searchsorted(self.calls, calls, side="right")) - 1]

    def calls_to(self, score: float) -> int | None:
        reached = np.flatnonzero(np.asarray(self.best) >= score)
        return int(self.calls[reached[0]]) if len(reached) else None


def trace_of(search, seconds_per_call) -> Trace:
    """The history of a search that ran in this process, one model at a time."""
    trace = Trace()
    done: dict = {}
    for row in search.history_:
        calls = row["partial_fit_calls"] - done.get(row["model_id"], 0)
        done[row["model_id"]] = row["partial_fit_calls"]
        trace.add(calls, calls * seconds_per_call(row), row["score"])
    return trace


def recorded_seconds(row) -> float:
    return float(curves()[1][row["params"]["index"]])


def hyperband(seed: int, **options):
    search = HyperbandSearchCV(
        Recorded(),
        {"index": range(len(curves()[0]))},
        max_iter=N_PARAMS,
        aggressiveness=AGGRESSIVENESS,
        random_state=seed,
        client=None,
        **options,
    ).fit(X, Y)
    return trace_of(search, recorded_seconds), search.best_score_


def random_search(seed: int):
    search = IncrementalSearchCV(
        Recorded(),
        {"index": range(len(curves()[0]))},
        n_initial_parameters=BUDGET // N_PARAMS,
        max_iter=N_PARAMS,
        random_state=seed,
        client=None,
        priority="fifo",
        slice_seconds=1e9,
    ).fit(X, Y)
    return trace_of(search, recorded_seconds), search.best_score_


def asha(seed: int, n: int = 1150, **options):
    """With as many models as make about as many calls as Hyperband."""
    search = AsyncHalvingSearchCV(
        Recorded(),
        {"index": range(len(curves()[0]))},
        n_initial_parameters=n,
        max_iter=N_PARAMS,
        aggressiveness=AGGRESSIVENESS,
        random_state=seed,
        client=None,
        **options,
    ).fit(X, Y)
    return trace_of(search, recorded_seconds), search.best_score_


def sklearn_halving(seed: int):
    search = HalvingRandomSearchCV(
        Recorded(),
        {"index": range(len(curves()[0]))},
        resource="n_calls",
        n_candidates=min(348, len(curves()[0])),
        min_resources=4,
        max_resources=N_PARAMS,
        factor=AGGRESSIVENESS,
        cv=[(np.arange(10), np.arange(10))],
        refit=False,
        random_state=seed,
        error_score="raise",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the last rung is below max_resources
        search.fit(X, Y)
    trace = Trace()
    results = search.cv_results_
    for params, calls, score in zip(
        results["params"], results["n_resources"], results["mean_test_score"], strict=True
    ):
        seconds = float(curves()[1][params["index"]])
        trace.add(int(calls), int(calls) * seconds, float(score))
    last = results["iter"] == max(results["iter"])
    return trace, float(np.max(results["mean_test_score"][last]))


def optuna_random_hyperband(seed: int):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trace = Trace()
    scores, seconds = curves()

    def objective(trial):
        index = trial.suggest_int("index", 0, len(scores) - 1)
        for call in range(N_PARAMS):
            trace.add(1, float(seconds[index]), float(scores[index, call]))
            trial.report(float(scores[index, call]), call + 1)
            if trace.calls[-1] >= BUDGET:
                trial.study.stop()
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(scores[index, call])

    study = optuna.create_study(
        study_name=str(seed),  # the pruner assigns brackets by a hash of the name
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(1, N_PARAMS, AGGRESSIVENESS),
    )
    study.optimize(objective)
    return trace, float(study.best_value)


def real_ours(seed: int, sampler: str):
    data, target = four_circles()
    start = time.perf_counter()
    search = HyperbandSearchCV(
        QuickNetwork(solver="sgd"),
        SPACE,
        max_iter=N_PARAMS,
        aggressiveness=AGGRESSIVENESS,
        chunk_size=INPUTS["chunk_size"],
        test_size=N_VALIDATION,
        random_state=seed,
        sampler=sampler,
        client=None,
    ).fit(data, target)
    trace = trace_of(search, lambda row: row["partial_fit_time"])
    return trace, search.best_score_, time.perf_counter() - start


def real_optuna(seed: int):
    import optuna
    from sklearn.model_selection import ShuffleSplit

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    data, target = four_circles()
    train, test = next(ShuffleSplit(1, test_size=N_VALIDATION, random_state=seed).split(data))
    chunks = np.array_split(train, -(-len(train) // INPUTS["chunk_size"]))
    trace = Trace()

    def objective(trial):
        model = QuickNetwork(
            solver="sgd",
            random_state=trial.number,
            alpha=trial.suggest_float("alpha", 1e-6, 1e-3, log=True),
            batch_size=trial.suggest_categorical("batch_size", SPACE["batch_size"]),
            learning_rate=trial.suggest_categorical("learning_rate", SPACE["learning_rate"]),
            learning_rate_init=trial.suggest_float("learning_rate_init", 1e-4, 1e-2, log=True),
            power_t=trial.suggest_float("power_t", 0.1, 0.9),
            momentum=trial.suggest_float("momentum", 0, 1),
            hidden_layer_sizes=json.loads(
                trial.suggest_categorical(
                    "layers", [json.dumps(sizes) for sizes in SPACE["hidden_layer_sizes"]]
                )
            ),
        )
        for call in range(N_PARAMS):
            rows = chunks[call % len(chunks)]
            begin = time.perf_counter()
            model.partial_fit(data[rows], target[rows], classes=[0, 1, 2, 3])
            took = time.perf_counter() - begin
            score = model.score(data[test], target[test])
            trace.add(1, took, score)
            trial.report(score, call + 1)
            if trace.calls[-1] >= BUDGET:
                trial.study.stop()
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return score

    study = optuna.create_study(
        study_name=str(seed),  # the pruner assigns brackets by a hash of the name
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(1, N_PARAMS, AGGRESSIVENESS),
    )
    start = time.perf_counter()
    study.optimize(objective)
    return trace, float(study.best_value), time.perf_counter() - start


SEARCHES = {
    "random, 19 models": random_search,
    "Hyperband, fifo (exact Algorithm 1)": lambda seed: hyperband(seed, priority="fifo"),
    "Hyperband, score first": hyperband,
    "ASHA, 8 in flight (default)": asha,
    "ASHA, 1 in flight": lambda seed: asha(seed, in_flight=1),
    "scikit-learn halving, from 4 calls": sklearn_halving,
    "Optuna, random + Hyperband pruner": optuna_random_hyperband,
}

REAL = {
    "Hyperband, random": lambda seed: real_ours(seed, "random"),
    "Hyperband, tpe": lambda seed: real_ours(seed, "tpe"),
    "Optuna, TPE + Hyperband pruner": real_optuna,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 seeds, under two minutes")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--real", type=int, default=0, help="seeds that are trained for real")
    arguments = parser.parse_args()
    seeds = range(10 if arguments.quick else arguments.seeds)
    results = {}
    for name, run in SEARCHES.items():
        outcomes = [run(seed) for seed in seeds]
        results[name] = {
            "at": {str(mark): float(np.mean([t.at(mark) for t, _ in outcomes])) for mark in MARKS},
            "final": [score for _, score in outcomes],
            "calls": float(np.mean([t.calls[-1] for t, _ in outcomes])),
            "seconds": float(np.mean([t.seconds[-1] for t, _ in outcomes])),
            "traces": [t for t, _ in outcomes],
        }
        print(name, "done", flush=True)
    goal = float(np.mean(results["random, 19 models"]["final"]))
    rows = []
    for name, result in results.items():
        traces = result.pop("traces")
        # the mean curve, as in Figure 2.3a: where it passes random search's mean final accuracy
        grid = np.arange(0, BUDGET + 1, 10)
        mean = np.mean([[t.at(int(calls)) for calls in grid] for t in traces], axis=0)
        passed = np.flatnonzero(mean >= goal)
        result["calls_to_random_final"] = int(grid[passed[0]]) if len(passed) else None
        clock = np.linspace(0, max(t.seconds[-1] for t in traces), 400)
        by_time = np.mean(
            [np.asarray(t.best)[np.searchsorted(t.seconds, clock, "right") - 1] for t in traces],
            axis=0,
        )
        reached = np.flatnonzero(by_time >= goal)
        result["seconds_to_random_final"] = float(clock[reached[0]]) if len(reached) else None
        result["curve"] = [round(float(value), 4) for value in mean[::10]]
        result["calls_to"] = {str(goal): first_at(result["curve"], goal) for goal in GOALS}
        rows.append(
            [name, *result["at"].values(), float(np.mean(result["final"])),
             float(np.percentile(result["final"], 5)), int(result["calls"]),
             *result["calls_to"].values(), result["calls_to_random_final"],
             result["seconds_to_random_final"]]
        )  # fmt: skip
    heads = ["search", *[f"@{mark}" for mark in MARKS], "final", "5 %", "calls",
             *[f"to {goal}" for goal in GOALS], "to random", "seconds"]  # fmt: skip
    print("\n" + table(heads, rows))
    earlier = RESULTS / "hyperband_serial.json"
    real = json.loads(earlier.read_text()).get("real", {}) if earlier.exists() else {}
    payload = {
        "examples": N_EXAMPLES,
        "validation": N_VALIDATION,
        "inputs": INPUTS,
        "recorded_configurations": len(curves()[0]),
        "seeds": len(seeds),
        "random_final": goal,
        "results": results,
        "real": real,
    }
    publish("hyperband_serial", payload, "optuna")
    for seed in range(arguments.real):
        for name, run in REAL.items():
            if any(entry["seed"] == seed for entry in real.get(name, [])):
                continue
            trace, final, wall = run(seed)
            entry = {"seed": seed, "final": final, "calls": trace.calls[-1], "wall_seconds": wall,
                     "at": {str(mark): trace.at(mark) for mark in MARKS}}  # fmt: skip
            real.setdefault(name, []).append(entry)
            print("trained for real:", name, entry, flush=True)
            publish("hyperband_serial", payload, "optuna")  # these take minutes: keep each


if __name__ == "__main__":
    main()
