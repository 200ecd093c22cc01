"""What the crowd benchmarks share: the eggs, a held-out set, a CPU clock, tables and results."""

from __future__ import annotations

import platform
import sys
import time

import numpy as np

from _report import RESULTS, aligned, command, save, versions
from accelerando.crowd import AlienEggs

PACKAGES = (
    "accelerando",
    "numpy",
    "scipy",
    "scikit-learn",
    "numba",
    "torch",
    "cblearn",
    "salmon-triplets",
)
N_EGGS = 90
# One fixed set of ninety eggs. Irregular, as the real ones are: on a grid every egg would have
# two equally near neighbours.
SMOOTHNESS = 2.0 * np.sort(np.random.default_rng(0).permutation(300)[:N_EGGS])


def random_answers(response_model, n_items, n_answers, seed):
    """Answers to uniformly drawn queries, as rows (head, winner, loser)."""
    rng = np.random.default_rng([seed, 77])
    rows = np.argsort(rng.random((n_answers, n_items)), axis=1)[:, :3]
    left = response_model(rows, rng) == 1
    return np.where(left[:, None], rows, rows[:, [0, 2, 1]])


def held_out(response_model=None, n_items=N_EGGS, n_answers=60_000):
    return random_answers(response_model or AlienEggs(SMOOTHNESS), n_items, n_answers, 123_456)


def cpu(function):
    """(CPU seconds, result) of one call."""
    begin = time.process_time()
    result = function()
    return time.process_time() - begin, result


def write(name, payload):
    machine = {"machine": platform.machine()}
    python, *others = versions(*PACKAGES).items()
    full = {
        "benchmark": name,
        "command": command(name, _without_paths(sys.argv[1:])),
        "versions": dict([python, *machine.items(), *others]),
        **payload,
    }
    # A short run must not overwrite the numbers of a full one.
    path = RESULTS / f"{name}{'_quick' if payload.get('quick') else ''}.json"
    save(path, full, default=float)
    print(f"\nwritten: benchmarks/results/{path.name}")


def _without_paths(arguments):
    return ["DIR" if "/" in argument else argument for argument in arguments]


def table(rows, columns, title=""):
    """Print rows (dicts) as an aligned table."""
    if title:
        print(f"\n{title}")
    print(*aligned(columns, ([row.get(c) for c in columns] for row in rows), _number), sep="\n")


def _number(value):
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
