"""What the Hyperband benchmarks share: the report."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

from _report import RESULTS, aligned, command, save, versions

PACKAGES = ("numpy", "scikit-learn", "dask", "distributed")


def publish(name: str, payload: dict, *packages: str) -> None:
    """Write the numbers with all that is needed to get them again.

    A quick run never overwrites the published numbers.
    """
    folder = RESULTS / "quick" if "--quick" in sys.argv else RESULTS
    report = {
        "benchmark": name,
        "command": command(name, _shown(sys.argv[1:])),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "versions": versions(*PACKAGES, *packages, missing="not installed"),
        **payload,
    }
    save(folder / f"{name}.json", report, short_lists=False)


def _shown(words: list[str]) -> list[str]:
    """Leave out where this machine keeps its files."""
    for option in ("--cache", "--traces"):
        if option in words:
            at = words.index(option)
            words = [*words[:at], *words[at + 2 :]]
    if "--data" in words:
        at = words.index("--data") + 1
        words = [*words[:at], "DIR", *words[at + 1 :]]
    return words


def table(headings: list[str], rows: list[list]) -> str:
    heading, *lines = aligned(headings, rows, "{:.3f}".format)
    return "\n".join([heading, "-" * len(heading), *lines])
