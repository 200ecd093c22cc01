"""What the runs of part (b) of compression.py say: a table, comparisons, and the evidence."""

from __future__ import annotations

import math
from typing import Any

from _common import console, print_table
from _training_common import epochs_to, spent_in

FAMILIES = ("SGD", "Atomo", "QSGD", "TernGrad", "TopK", "PowerSGD")
PAPER = ", paper"  # as the papers configured it
BUSY = 0.3  # processors; a time that was measured while others used more is not published


def reached(row: dict[str, Any], target: float) -> dict[str, float | None]:
    """Return epochs, seconds and bytes to the target; None where it was not reached."""
    epochs = epochs_to(target, row["accuracies"])
    if epochs is None:
        return {"epochs": None, "seconds": None, "bytes": None}
    return {
        "epochs": epochs,
        **{name: spent_in(epochs, row[f"epoch_{name}"]) for name in ("seconds", "bytes")},
    }


def noise(accuracy: float, rows: int) -> float:
    """Return how far two equally good networks may differ on this many test rows: 2 deviations."""
    return 2 * math.sqrt(2 * accuracy * (1 - accuracy) / rows)


def judged(rows: list[dict[str, Any]], target: float, test_rows: int) -> list[dict[str, Any]]:
    """Add to each row what it took to the target, and where it loses against SGD."""
    found = [{**row, "to_target": reached(row, target)} for row in rows]
    plain = next(row for row in found if row["method"] == "SGD")
    for row in found:
        seconds, dense = row["to_target"]["seconds"], plain["to_target"]["seconds"]
        row["best_accuracy"] = max(row["accuracies"], default=0.0)
        losses = row.get("losses")
        row["last_loss"] = losses[-1] if losses else None
        lost = []
        if seconds is None:
            lost.append("target not reached")
        elif dense is not None and seconds > dense:
            lost.append("slower than SGD")
        allowed = noise(max(plain["accuracies"]), test_rows)
        if row["best_accuracy"] < max(plain["accuracies"]) - allowed:
            lost.append("less accurate than SGD")
        row["loses"] = lost
        row["times_faster_than_sgd"] = dense / seconds if seconds and dense else None
    return found


def disturbed(rows: list[dict[str, Any]]) -> list[str]:
    """Return the methods during which others used the processors."""
    return [row["method"] for row in rows if row["processors_taken_by_others"] > BUSY]


def best_of(rows: list[dict[str, Any]], *, paper: bool | None = None) -> dict[str, dict[str, Any]]:
    """Return the fastest of each family that reached the target.

    With `paper`, of those only that are, or are not, configured as in the papers.
    """
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if paper is not None and row["method"].endswith(PAPER) != paper:
            continue
        family, seconds = row["method"].split("(")[0].split(",")[0], row["to_target"]["seconds"]
        if seconds is not None and (
            family not in best or seconds < best[family]["to_target"]["seconds"]
        ):
            best[family] = row
    return best


def evidence(rows: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """Say for the evidence page what came of the dissertation's claim."""
    best, target = best_of(rows), settings["target"]
    facts = ", ".join(
        f"{best[name]['method']} {best[name]['to_target']['seconds']:.0f} s"
        if name in best
        else f"{name} not at all"
        for name in FAMILIES
    )
    good = [
        name in best and not best[name]["loses"] and "SGD" in best for name in ("Atomo", "QSGD")
    ]
    measured = (
        f"{settings['ranks']} ranks at {settings['bandwidth'] / 1e6:g} Mb/s, a small ResNet-style "
        f"network on CIFAR-10 to {100 * target:.0f} % (the best of each): {facts}; "
        f"{settings['seeds']} seed, {settings['epochs']} epochs"
    )
    verdict = "yes" if all(good) else "partly" if any(good) else "**no**"
    return {
        "atomo": {"measured": measured, "verdict": verdict},
        "atomo-rivals": against_papers(rows, settings),
    }


def against_papers(rows: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, str]:
    """Compare the best Atomo with its rivals as the papers configured them.

    A rival that never got to the target is behind, whatever the factor.
    """
    atomo, papers = best_of(rows).get("Atomo"), best_of(rows, paper=True)
    today = best_of(rows, paper=False)
    found, factors = [], []
    for name, claimed in (("QSGD", 2.0), ("TernGrad", 3.0)):
        if atomo is None:
            factors.append(0.0)
            continue
        seconds = atomo["to_target"]["seconds"]
        gain = papers[name]["to_target"]["seconds"] / seconds if name in papers else math.inf
        factors.append(gain / claimed)
        text = f"{gain:.2f} times" if name in papers else "the paper's did not get there"
        if name in today:
            text += f" ({today[name]['to_target']['seconds'] / seconds:.2f} as it is today)"
        found.append(f"{name}: {text}")
    measured = "; ".join(found) or "no Atomo reached the target"
    reached = all(one >= 1.0 for one in factors)
    verdict = "yes" if reached else "partly" if any(one > 0.5 for one in factors) else "**no**"
    about = f"{settings['ranks']} ranks at {settings['bandwidth'] / 1e6:g} Mb/s, small ResNet"
    return {"measured": f"{measured}; {about}", "verdict": verdict}


def show(rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Print the table and the comparisons."""
    print_table(
        f"{settings['ranks']} ranks at {settings['bandwidth'] / 1e6:g} Mb/s, to an accuracy of "
        f"{100 * settings['target']:.0f} % on {settings['test_rows']} test images",
        ["method", "step size", "ms / update", "waiting", "coding", "kB / update",
         "epochs", "seconds", "MB", "× SGD's speed", "best accuracy", "loss", "loses"],
        [
            [
                row["method"],
                f"{row['step_size']:g}",
                f"{1e3 * row['update_seconds']:.0f}",
                f"{1e3 * row['wait_seconds']:.0f}",
                f"{1e3 * (row['encode_seconds'] + row['decode_seconds']):.0f}",
                f"{row['bytes_per_update'] / 1e3:.0f}",
                _number(row["to_target"]["epochs"], 1),
                _number(row["to_target"]["seconds"], 1),
                _number(row["to_target"]["bytes"], 1, 1e-6),
                _number(row["times_faster_than_sgd"], 2),
                f"{100 * row['best_accuracy']:.1f} %",
                _number(row["last_loss"], 3),
                ", ".join(row["loses"]) or "–",
            ]
            for row in rows
        ],
    )  # fmt: skip
    best = best_of(rows)
    atomo = best.get("Atomo")
    for name in FAMILIES:
        if name != "Atomo" and name in best and atomo is not None:
            ratio = best[name]["to_target"]["seconds"] / atomo["to_target"]["seconds"]
            word = "faster" if ratio > 1 else "slower: it loses"
            console.print(
                f"{atomo['method']} against {best[name]['method']}: {ratio:.2f} times as fast "
                f"({word})"
            )
    if atomo is None:
        console.print("No Atomo reached the target: it loses.")


def _number(value: float | None, digits: int, factor: float = 1.0) -> str | None:
    return None if value is None else f"{value * factor:.{digits}f}"
