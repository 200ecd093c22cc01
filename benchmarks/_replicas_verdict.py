"""What the runs of replicas.py say: speed, time to the target, a table, and the evidence."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from _common import console, print_table
from _training_common import epochs_to, spent_in, steady_seconds

ONE = "one replica"


class Replicas(NamedTuple):
    """How many there are, and in every how many updates they are corrected."""

    count: int | str
    period: int = 1


REPLICAS = {
    "2 replicas": Replicas(2),
    "2 replicas, every 4th": Replicas(2, period=4),
    "4 replicas": Replicas(4),
    "auto": Replicas("auto"),
}
BELOW = 0.005  # the target, below the best of one replica
THROUGHPUT, TIME = 1.4, 2.0  # the least that several replicas are to be better


def speed(seconds: np.ndarray, epochs: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Return the seconds of each epoch, and the rows per second in the second half of them."""
    taken = steady_seconds(seconds, epochs, np.mean)
    numbers = np.unique(epochs)
    late = epochs >= numbers[len(numbers) // 2]
    return {
        "epoch_seconds": [float(taken[epochs == number].sum()) for number in numbers],
        "rows_per_second": float(rows[late].sum() / taken[late].sum()),
    }


def target_of(runs: list[dict[str, Any]]) -> float:
    """Return half a point below the best accuracy of one replica, the median over the seeds."""
    return median(max(run["accuracies"]) for run in runs) - BELOW


def summary(runs: dict[str, list[dict[str, Any]]], target: float) -> list[dict[str, Any]]:
    """Return medians over the seeds, and how much better than one replica they are."""
    rows: list[dict[str, Any]] = []
    for way, found in runs.items():
        epochs = [epochs_to(target, run["accuracies"]) for run in found]
        seconds = [
            None if e is None else spent_in(e, run["epoch_seconds"])
            for e, run in zip(epochs, found, strict=True)
        ]
        rows.append(
            {
                "way": way,
                "step_size": found[0]["step_size"],
                "style": found[0]["style"],
                "replicas": [run["replicas"] for run in found],
                "rows_per_second": median(run["rows_per_second"] for run in found),
                "reached": sum(e is not None for e in epochs),
                "epochs": middle(epochs),
                "seconds": middle(seconds),
                "best_accuracy": median(max(run["accuracies"]) for run in found),
            }
        )
    one = next(row for row in rows if row["way"] == ONE)
    for row in rows:
        row["throughput_ratio"] = row["rows_per_second"] / one["rows_per_second"]
        both = row["seconds"] is not None and one["seconds"] is not None
        row["time_ratio"] = one["seconds"] / row["seconds"] if both else None
    return rows


def middle(values: list[float | None]) -> float | None:
    """Return the median, in which what was not reached counts as later than all else."""
    found = median(math.inf if value is None else value for value in values)
    return found if math.isfinite(found) else None


def evidence(
    rows: list[dict[str, Any]], target: float, settings: dict[str, Any]
) -> dict[str, dict[str, str]]:
    """Say for the evidence page what came of the paper's claim."""
    several = [row for row in rows if row["way"] in REPLICAS]
    facts, best = [], 0
    for row in several:
        quick = row["time_ratio"]
        name = row["way"]
        if name == "auto":
            name = f"auto ({median(row['replicas']):g})"
        reached = "target not reached" if quick is None else f"{quick:.2f} times faster to it"
        facts.append(f"{name}: {row['throughput_ratio']:.2f} times the throughput, {reached}")
        met = (row["throughput_ratio"] >= THROUGHPUT) + (quick is not None and quick >= TIME)
        best = max(best, met)
    text = (
        f"{'; '.join(facts)}; {target:.1%} on {settings['data']}, a small ResNet-style network, "
        f"{settings['processors']} processors"
    )
    return {"crossbow": {"measured": text, "verdict": ("**no**", "partly", "yes")[best]}}


def show(rows: list[dict[str, Any]], target: float, settings: dict[str, Any]) -> None:
    """Print the table."""
    print_table(
        f"To {target:.2%} test accuracy on {settings['processors']} processors (medians over "
        f"{settings['seeds']} seeds)",
        ["", "step size", "momentum", "pull", "replicas", "rows / s", "× one replica", "reached",
         "epochs", "seconds", "× as fast to it", "best accuracy"],
        [
            [
                row["way"],
                f"{row['step_size']:g}",
                "central" if row["style"]["central"] else "own",
                "weak" if row["style"]["pull"] < 1.0 else None,
                ", ".join(map(str, sorted(set(row["replicas"])))),
                f"{row['rows_per_second']:,.0f}",
                f"{row['throughput_ratio']:.2f}",
                f"{row['reached']}/{settings['seeds']}",
                _number(row["epochs"], 1),
                _number(row["seconds"], 1),
                _number(row["time_ratio"], 2),
                f"{row['best_accuracy']:.2%}",
            ]
            for row in rows
        ],
    )  # fmt: skip
    console.print(f"Targets for several replicas: {THROUGHPUT} and {TIME} times one replica.")


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
