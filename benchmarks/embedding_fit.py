"""How fast and how good are embeddings from random answers, compared with cblearn's?

    python benchmarks/embedding_fit.py [--quick] [--data DIR] [--torch]

Simulated alien eggs (90 items, the response curve of Figure 4.7) with 1,000, 3,000 and 10,000
random answers; accuracy on 60,000 held-out answers, nearest-neighbor distance, CPU seconds on
one thread.
With --data DIR also the human answers in DIR/eggs30_next2015.csv, trained on everything but the
answers of the sampler "Test" and tested on those. cblearn: pip install --no-deps cblearn sparse
(its requirements name NumPy 1). Its torch backends are slow; --torch times its t-STE with 2 seeds.
--sizes runs a part and keeps the stored rest.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from _crowd_common import N_EGGS, RESULTS, SMOOTHNESS, cpu, held_out, random_answers, table, write
from accelerando.crowd import (
    AlienEggs,
    OrdinalEmbedding,
    nearest_neighbor_distance,
    triplet_accuracy,
)
from accelerando.crowd._metrics import nearest_neighbor_error

OURS = {
    "ours t-STE, lapse .05 (default)": {},
    "ours t-STE, lapse .07": {"lapse": 0.07},
    "ours t-STE, lapse estimated": {"lapse": "estimate"},
    "ours t-STE, no lapse": {"lapse": 0.0},
    "ours CKL, lapse .05": {"noise": "ckl"},
    "ours CKL, no lapse": {"noise": "ckl", "lapse": 0.0},
    "ours logistic, lapse .05": {"noise": "logistic"},
    "ours STE, lapse .05": {"noise": "ste"},
    "ours SOE": {"noise": "soe"},
    "ours GNMDS": {"noise": "gnmds"},
}


def our_methods(n_items):
    def build(settings):
        return lambda rows, seed: (
            OrdinalEmbedding(n_items=n_items, random_state=seed, **settings).fit(rows).embedding_
        )

    return {name: build(settings) for name, settings in OURS.items()}


def cblearn_methods(with_torch):
    try:
        from cblearn.embedding import CKL, GNMDS, SOE, STE, TSTE
    except ImportError:
        print("cblearn is not installed: pip install --no-deps cblearn sparse numba")
        return {}

    def build(kind, **settings):
        def run(rows, seed):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Rows (head, winner, loser) are its "list-order" format.
                return kind(n_components=2, random_state=seed, **settings).fit(rows).embedding_

        return run

    methods = {
        "cblearn t-STE (scipy)": build(TSTE),
        "cblearn CKL (scipy)": build(CKL),
        "cblearn SOE (scipy)": build(SOE),
        "cblearn GNMDS (scipy)": build(GNMDS),
        "cblearn STE (scipy)": build(STE),
    }
    if with_torch:
        methods["cblearn t-STE (torch)"] = build(TSTE, backend="torch")
    return methods


def measure(methods, train_of, test, *, truth, seeds):
    """One row per method; methods take turns within a seed so that the machine treats all alike."""
    values = {name: [] for name in methods}
    for name, run in methods.items():
        if "torch" not in name:
            run(train_of(10_000), 0)  # imports and caches
    for seed in seeds:
        rows = train_of(seed)
        for name, run in methods.items():
            if "torch" in name and seed >= 2:
                continue
            used, found = cpu(lambda run=run, rows=rows, seed=seed: run(rows, seed))
            found = np.asarray(found)
            values[name].append(
                (
                    used,
                    triplet_accuracy(found, test),
                    nearest_neighbor_distance(found, truth),
                    nearest_neighbor_error(found, truth),
                )
            )
    rows = []
    for name, runs in values.items():
        used, accuracy, distance, error = np.array(runs).T
        rows.append(
            {
                "method": name,
                "accuracy": float(accuracy.mean()),
                "± sd": float(accuracy.std()),
                "NN distance": float(distance.mean()),
                "NN error": float(error.mean()),
                "CPU s": float(np.median(used)),
                "seeds": len(runs),
            }
        )
    return rows


def compared(rows):
    """Adds how many times faster each of our fits is than cblearn's of the same model."""
    peers = {row["method"].split()[1]: row["CPU s"] for row in rows if "scipy" in row["method"]}
    for row in rows:
        row.pop("× cblearn's fastest", None)
        model = row["method"].split()[1].strip(",")
        if row["method"].startswith("ours") and model in peers:
            row["× cblearn"] = peers[model] / row["CPU s"]
    return rows


def human(directory):
    """(train, test, truth) of the NEXT 2015 answers."""
    with (directory / "eggs30_targets.csv").open() as file:
        truth = np.array([float(row["smoothness"]) for row in csv.DictReader(file)])
    with (directory / "eggs30_next2015.csv").open() as file:
        rows = list(csv.DictReader(file))
    triplets = np.array([[int(row[c]) for c in ("head", "winner", "loser")] for row in rows])
    is_test = np.array([row["sampler"] == "Test" for row in rows])
    return triplets[~is_test], triplets[is_test], truth


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, no 10,000 answers")
    parser.add_argument("--data", type=Path, help="folder with eggs30_next2015.csv")
    parser.add_argument("--torch", action="store_true", help="also cblearn's torch t-STE (slow)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", help="only these; others are kept")
    options = parser.parse_args()
    sizes = [1_000, 3_000] if options.quick else [1_000, 3_000, 10_000]
    sizes = sizes if options.sizes is None else options.sizes
    seeds = range(2 if options.quick else options.seeds)
    eggs = AlienEggs(SMOOTHNESS)
    columns = [
        "method",
        "accuracy",
        "± sd",
        "NN distance",
        "NN error",
        "CPU s",
        "× cblearn",
        "seeds",
    ]
    path = RESULTS / "embedding_fit.json"
    keep = path.exists() and options.sizes is not None and not options.quick
    results = json.loads(path.read_text())["sizes"] if keep else {}
    with threadpool_limits(1):
        test = held_out()
        ceiling = triplet_accuracy(SMOOTHNESS, test)
        print(f"accuracy of the true positions: {ceiling:.4f}")
        for size in sizes:
            methods = our_methods(N_EGGS) | cblearn_methods(options.torch)
            rows = measure(
                methods,
                lambda seed, size=size: random_answers(eggs, N_EGGS, size, seed),
                test,
                truth=SMOOTHNESS,
                seeds=seeds,
            )
            title = f"{size:,} random answers, 90 eggs, {len(seeds)} seeds"
            table(compared(rows), columns, title)
            results[str(size)] = rows
        if options.data:
            train, test, truth = human(options.data)
            for size in (1_000, 3_000, len(train)):

                def subset(seed, size=size, train=train):
                    order = np.random.default_rng([seed, 5]).permutation(len(train))
                    return train[order[:size]]

                rows = measure(
                    our_methods(len(truth)) | cblearn_methods(False),
                    subset,
                    test,
                    truth=truth,
                    seeds=seeds,
                )
                title = f"{size:,} human answers, 30 eggs (NEXT 2015); {len(test)} held out"
                table(compared(rows), columns, title)
                results[f"human {size}"] = rows
    for rows in results.values():
        compared(rows)
    note = "written by the last of several parts: --sizes N, then --sizes --data DIR"
    write(
        "embedding_fit",
        {
            "quick": options.quick,
            "note": note if keep else "",
            "ceiling": ceiling,
            "seeds": len(seeds),
            "sizes": results,
        },
    )


if __name__ == "__main__":
    main()
