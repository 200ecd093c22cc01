"""How every benchmark reports: what it ran with, a table for people, a file to get it again."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def versions(*packages: str, missing: str | None = None) -> dict[str, str | None]:
    """Return the versions of Python and of the packages; `missing` for those not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = missing
    return found


def command(name: str, words: Iterable[str]) -> str:
    """Return a command line as another person would type it."""
    return " ".join(["python", f"benchmarks/{name}.py", *words])


def save(
    path: Path,
    content: dict[str, Any],
    *,
    default: Callable[[Any], Any] | None = None,
    short_lists: bool = True,
) -> None:
    """Write JSON for people as well: with `short_lists` a list of numbers stands on one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, default=default)
    if short_lists:  # the curves would be thousands of lines otherwise
        text = re.sub(r"\[[-+.\deE,\snul]+\]", lambda found: " ".join(found[0].split()), text)
    path.write_text(text + "\n")


def aligned(
    columns: Sequence[str], rows: Iterable[Iterable[Any]], write: Callable[[float], str]
) -> list[str]:
    """Return the lines of a table; `write` says how a float is written, None is a dash."""
    cells = [list(columns), *([_cell(value, write) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return ["  ".join(map(str.ljust, row, widths)) for row in cells]


def _cell(value: Any, write: Callable[[float], str]) -> str:
    if value is None:
        return "–"
    return write(value) if isinstance(value, float) else str(value)
