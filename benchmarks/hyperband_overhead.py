"""What a search costs beyond its models' own time.

Sleeping models, so that the ideal is known. Two ideals: a bound that holds for every search, the
longer of all calls divided among the workers and of the longest model; and, for ours, the schedule
of its plan (``simulate`` with the sleep as the time of a call and scores for free). Reported are
milliseconds of wall-clock over the bound per call, and the ratios to both. A sleep takes longer
than asked for, the more so on a busy machine, so there is also what is left of these milliseconds
when the calls are counted with the time that they took.

Peers run the same model: Optuna here, Dask-ML and Ray Tune in their own environments, which
``--make-peers`` installs (into the system's directory for temporary files).

    python benchmarks/hyperband_overhead.py [--quick] [--make-peers]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster
from scipy.stats import uniform

from _search_common import publish, table
from _search_model import Sleeper
from accelerando.search import HyperbandSearchCV, simulate
from accelerando.search._plan import hyperband_brackets

HERE = Path(__file__).parent
PEERS = Path(tempfile.gettempdir()) / "accelerando-peers"
PINS = {
    "dask-ml": [
        "dask-ml==2025.1.0",
        "dask==2025.1.0",
        "distributed==2025.1.0",
        "scikit-learn==1.6.1",
        "numpy<2.3",
    ],
    "ray": ["ray[tune]", "scikit-learn"],
}
SCRIPTS = {"dask-ml": "_peer_dask_ml.py", "ray": "_peer_ray.py"}
X, Y = np.zeros((100, 2)), np.zeros(100)
SPACE = {"quality": uniform(0, 1)}


def ideal_seconds(search, workers: int, seconds: float) -> float:
    """The best of the simulated schedules, without any overhead."""
    return min(
        simulate(search, workers, fit_seconds=seconds, score_seconds=0.0, priority=priority).seconds
        for priority in ("score", "fifo")
    )


def ours(max_iter: int, seconds: float, workers: int, client: Client | None) -> dict:
    options = {"random_state": 0, "client": client}
    HyperbandSearchCV(Sleeper(), SPACE, max_iter=3, **options).fit(X, Y)  # warm up
    search = HyperbandSearchCV(Sleeper(seconds=seconds), SPACE, max_iter=max_iter, **options)
    start = time.perf_counter()
    search.fit(X, Y)
    wall = time.perf_counter() - start
    calls = search.metadata_["partial_fit_calls"]
    took = float(np.mean([row["partial_fit_time"] for row in search.history_]))
    return {
        "wall": wall,
        "calls": calls,
        "bound": bound_seconds(calls, max_iter, seconds, workers),
        "ideal": ideal_seconds(search, workers, seconds),
        "call_took": took,
    }


def optuna_in_memory(max_iter: int, seconds: float, calls: int) -> dict:
    """Optuna's random sampler and Hyperband pruner until it has made as many calls."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = 0

    def objective(trial):
        nonlocal made
        model = Sleeper(trial.suggest_float("quality", 0, 1), seconds)
        for step in range(1, max_iter + 1):
            model.partial_fit(X)
            made += 1
            score = model.score(X)
            trial.report(score, step)
            if made >= calls:
                trial.study.stop()
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return score

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=max_iter)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    start = time.perf_counter()
    study.optimize(objective)
    return {"wall": time.perf_counter() - start, "calls": made, "bound": made * seconds}


def peer(name: str, workers: int, seconds: float, max_iter: int) -> dict | None:
    python = PEERS / name / "bin" / "python"
    if not python.exists():
        return None
    command = [str(python), str(HERE / SCRIPTS[name]), str(workers), str(seconds), str(max_iter)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if run.returncode:
        return {"failed": run.stderr.strip().splitlines()[-1][:200]}
    measured = json.loads(run.stdout.strip().splitlines()[-1])
    return {**measured, "bound": bound_seconds(measured["calls"], max_iter, seconds, workers)}


def make_peers() -> None:
    for name, pins in PINS.items():
        home = PEERS / name
        if not (home / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *pins], check=True)


def line(what: str, workers: int, seconds: float, measured: dict | None) -> list:
    start = [what, workers, f"{seconds * 1e3:.0f}"]
    if measured is None or "failed" in measured:
        return [*start, *[None] * 5, (measured or {}).get("failed", "not installed")]
    wall, bound, ideal = measured["wall"], measured["bound"], measured.get("ideal")
    over = 1e3 * (wall - bound) / measured["calls"]
    beyond = None
    if seconds and "call_took" in measured:
        beyond = 1e3 * (wall - bound * measured["call_took"] / seconds) / measured["calls"]
    ratios = [wall / bound if bound else None, wall / ideal if ideal else None]
    return [*start, measured["calls"], over, beyond, *ratios, ""]


def bound_seconds(calls: int, max_iter: int, seconds: float, workers: int) -> float:
    return max(max_iter * seconds, calls * seconds / workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="max_iter 27, under two minutes")
    parser.add_argument("--make-peers", action="store_true")
    arguments = parser.parse_args()
    if arguments.make_peers:
        make_peers()
    max_iter = 27 if arguments.quick else 81
    calls = sum(bracket.partial_fit_calls for bracket in hyperband_brackets(max_iter))
    results, rows = [], []

    def add(what: str, workers: int, seconds: float, measured: dict | None) -> None:
        results.append({"what": what, "workers": workers, "seconds": seconds, "result": measured})
        rows.append(line(what, workers, seconds, measured))
        print(rows[-1], flush=True)

    for seconds in (0.0,) if arguments.quick else (0.0, 0.05):
        add("accelerando, in process", 1, seconds, ours(max_iter, seconds, 1, None))
        add("optuna, in memory", 1, seconds, optuna_in_memory(max_iter, seconds, calls))
    for workers in (2, 8):
        for seconds in (0.0, 0.05):
            with (
                LocalCluster(
                    n_workers=workers, threads_per_worker=1, dashboard_address=":0"
                ) as cluster,
                Client(cluster) as client,
            ):
                add("accelerando, Dask", workers, seconds, ours(max_iter, seconds, workers, client))
            for name in SCRIPTS:
                if not (arguments.quick and workers == 8):
                    add(name, workers, seconds, peer(name, workers, seconds, max_iter))
    heads = ["search", "workers", "call ms", "calls", "ms over bound per call", "beyond the calls",
             "x bound", "x schedule", "note"]  # fmt: skip
    print("\n" + table(heads, rows))
    publish("hyperband_overhead", {"max_iter": max_iter, "results": results}, "optuna")


if __name__ == "__main__":
    main()
