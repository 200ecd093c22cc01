"""Figure 2.3b: seconds to reach given scores on real workers, high scorers first against fifo.

The recorded configurations of ``hyperband_serial`` on a real Dask cluster of processes: a call
sleeps as long as it took when it was recorded and its score is looked up, so that four workers are
four workers on a machine with two cores. Both orders have the same seeds, and must end with the
same model. They take the same time in all; a pair whose times differ by more than a fifth was
disturbed by something else and is measured again.

    python benchmarks/hyperband_priority.py [--quick] [--seeds 5] [--cache FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster

from _search_circles import AGGRESSIVENESS, N_PARAMS, Recorded, curves
from _search_common import publish, table
from accelerando.search import HyperbandSearchCV

GOALS = (0.8, 0.88, 0.9)
X, Y = np.zeros((10, 1)), np.repeat([0, 1], 5)


class SleepingRecorded(Recorded):
    """Takes the time it took."""

    def partial_fit(self, X, y=None):
        time.sleep(float(curves()[1][self.index]))
        return super().partial_fit(X, y)


def run(client: Client, seed: int, priority: str) -> HyperbandSearchCV:
    return HyperbandSearchCV(
        SleepingRecorded(),
        {"index": range(len(curves()[0]))},
        max_iter=N_PARAMS,
        aggressiveness=AGGRESSIVENESS,
        random_state=seed,
        client=client,
        priority=priority,
    ).fit(X, Y)


def seconds_to(search: HyperbandSearchCV, goal: float) -> float | None:
    return next((r["elapsed_wall_time"] for r in search.history_ if r["score"] >= goal), None)


def compare(client: Client, workers: int, seed: int) -> dict:
    pair = {priority: run(client, seed, priority) for priority in ("fifo", "score")}
    entry = {"workers": workers, "seed": seed}
    for priority, search in pair.items():
        entry[priority] = {
            "total": search.history_[-1]["elapsed_wall_time"],
            "to": {str(goal): seconds_to(search, goal) for goal in GOALS},
            "best_score": search.best_score_,
            "best_index": search.best_index_,
        }
    scores = [search.cv_results_["test_score"] for search in pair.values()]
    entry["same_model"] = bool(
        pair["fifo"].best_index_ == pair["score"].best_index_ and np.array_equal(*scores)
    )
    return entry


def disturbed(entry: dict) -> bool:
    totals = [entry[priority]["total"] for priority in ("fifo", "score")]
    return max(totals) > 1.2 * min(totals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, under two minutes")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="finished pairs, not measured again")
    arguments = parser.parse_args()
    done = {}
    if arguments.cache is not None and arguments.cache.exists():
        listed = json.loads(arguments.cache.read_text())
        done = {(entry["workers"], entry["seed"]): entry for entry in listed}
    seeds = range(1 if arguments.quick else arguments.seeds)
    results, rows = [], []
    for workers in (2, 4):
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=":0"
            ) as cluster,
            Client(cluster) as client,
        ):
            for seed in seeds:
                entry = done.get((workers, seed))
                for _ in range(3):
                    if entry is not None and not disturbed(entry):
                        break
                    entry = compare(client, workers, seed)
                    print(entry, flush=True)
                results.append(entry)
                if arguments.cache is not None:
                    arguments.cache.write_text(json.dumps(results))
    for workers in (2, 4):
        own = [entry for entry in results if entry["workers"] == workers]
        for goal in map(str, GOALS):
            fifo = [entry["fifo"]["to"][goal] for entry in own]
            score = [entry["score"]["to"][goal] for entry in own]
            ratio = float(np.exp(np.mean(np.log(np.divide(score, fifo)))))
            rows.append([workers, f"to {goal}", float(np.mean(fifo)), float(np.mean(score)), ratio])
        fifo = [entry["fifo"]["total"] for entry in own]
        score = [entry["score"]["total"] for entry in own]
        ratio = float(np.exp(np.mean(np.log(np.divide(score, fifo)))))
        rows.append([workers, "all", float(np.mean(fifo)), float(np.mean(score)), ratio])
    print("\n" + table(["workers", "goal", "fifo s", "score s", "score / fifo"], rows))
    print("same final model in all:", all(entry["same_model"] for entry in results))
    publish(
        "hyperband_priority",
        {
            "recorded_configurations": len(curves()[0]),
            "seeds": len(seeds),
            "summary": [dict(zip(("workers", "goal", "fifo", "score", "ratio"), row, strict=True))
                        for row in rows],
            "results": results,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
