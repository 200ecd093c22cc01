"""What the Hyperband benchmarks share: the report."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def versions(*names: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "scikit-learn", "dask", "distributed", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def publish(name: str, payload: dict, *packages: str) -> None:
    """Write the numbers with all that is needed to get them again.

    A quick run never overwrites the published numbers.
    """
    folder = RESULTS / "quick" if "--quick" in sys.argv else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "benchmark": name,
        "command": " ".join(["python", f"benchmarks/{name}.py", *_shown(sys.argv[1:])]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "versions": versions(*packages),
        **payload,
    }
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")


def _shown(words: list[str]) -> list[str]:
    """Leave out where this machine keeps its files."""
    if "--cache" in words:
        at = words.index("--cache")
        return [*words[:at], *words[at + 2 :]]
    return words


def table(headings: list[str], rows: list[list]) -> str:
    cells = [headings, *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
