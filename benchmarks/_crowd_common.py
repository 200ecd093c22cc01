"""What the crowd benchmarks share: the eggs, a held-out set, a CPU clock, tables and results."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
import time
from pathlib import Path

import numpy as np

from accelerando.crowd import AlienEggs

RESULTS = Path(__file__).parent / "results"
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


def versions():
    names = ["accelerando", "numpy", "scipy", "scikit-learn", "numba", "torch", "cblearn"]
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in [*names, "salmon-triplets"]:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def write(name, payload):
    RESULTS.mkdir(exist_ok=True)
    command = " ".join(["python", f"benchmarks/{name}.py", *_without_paths(sys.argv[1:])])
    full = {"benchmark": name, "command": command, "versions": versions(), **payload}
    # A short run must not overwrite the numbers of a full one.
    path = RESULTS / f"{name}{'_quick' if payload.get('quick') else ''}.json"
    text = json.dumps(full, indent=1, default=float)
    # A list of numbers on one line: otherwise a curve fills a screen.
    text = re.sub(r"\[[\s\d.,eul\-+n]*\]", lambda found: " ".join(found[0].split()), text)
    path.write_text(text + "\n")
    print(f"\nwritten: benchmarks/results/{path.name}")


def _without_paths(arguments):
    return ["DIR" if "/" in argument else argument for argument in arguments]


def table(rows, columns, title=""):
    """Print rows (dicts) as an aligned table."""
    if title:
        print(f"\n{title}")
    text = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(c), *(len(r[k]) for r in text)) for k, c in enumerate(columns)]
    for line in [list(columns), *text]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value):
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
