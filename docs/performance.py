"""Write docs/performance.md and README's measured rows: python docs/performance.py

Every number is read from ``benchmarks/results``, so that neither page can say anything else. A cell
holds one number. ``tests/test_performance.py`` fails while a page and the results differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from performance_tables import TABLES, Rows, number, older_sampler, percent

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"


def load(name: str, results: Path = RESULTS) -> Any:
    """Return the content of a result file."""
    return json.loads((results / name).read_text())


def markdown(heads: Iterable[str], rows: Rows) -> str:
    """Return a table; all columns but the first are aligned to the right."""
    heads = list(heads)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(results: Path = RESULTS) -> str:
    """Return docs/performance.md."""
    parts = [
        "# Performance",
        "<!-- Written by `python docs/performance.py` from benchmarks/results. Do not edit. -->",
        "Measured on two cores of a Xeon or an EPYC; each result file names the processor, the "
        "versions and the settings. Every script in `benchmarks/` writes its table and the file in "
        "`benchmarks/results/` anew. Losses are listed with the wins. "
        "[What the papers claim](evidence.md) has its own page.",
    ]
    for title, tables in TABLES.items():
        parts.append(f"## {title}")
        for table in tables:
            name = table.result or str(Path(table.script).with_suffix(".json"))
            found = load(name, results)
            text = table.text + table.remark(found)
            parts += [f"### {table.title}", text, markdown(table.heads, table.rows(found))]
            parts.append(f"Script: `benchmarks/{table.script}`.")
    return "\n\n".join(parts) + "\n"


class Headline(NamedTuple):
    """The numbers that README names, from the results."""

    overhead: float
    skorch: float
    killed: float
    started: float
    first: int
    random_search: int
    fast: float
    slow: float
    answers: int
    faults: int
    lost: int
    chosen: float
    random: float
    older: str


def headline(results: Path = RESULTS) -> Headline:
    """Read the numbers that README names."""
    overhead = next(
        row
        for row in load("train_overhead.json", results)["rows"]
        if row["case"] == "fashion-mlp" and row["batch_size"] == 256
    )
    elastic = {row["question"]: row["seconds"] for row in load("elastic.json", results)["rows"]}
    searches = load("hyperband_serial.json", results)["results"]
    priority = next(
        row
        for row in load("hyperband_priority.json", results)["summary"]
        if row["workers"] == 2 and row["goal"] == "to 0.88"
    )
    chaos = load("serve_chaos.json", results)["rows"]
    served = load("serve_active.json", results)
    active = next(  # the first fit in which all runs of both samplers reached the goal
        row
        for row in served["rows"]
        if row["goal"] == "accuracy 0.82" and row["Random reached"] == row["ARR reached"]
    )
    return Headline(
        overhead=overhead["ratio_accelerando"],
        skorch=overhead["ratio_skorch"],
        killed=elastic["SIGKILL to one of 4, to the next update on 3"],
        started=elastic["asked for 4 ranks, to the first update on 4"],
        first=searches["Hyperband, score first"]["calls_to_random_final"],
        random_search=searches["random, 19 models"]["calls_to_random_final"],
        fast=priority["score"],
        slow=priority["fifo"],
        answers=sum(row["answers"] for row in chaos),
        faults=len(chaos),
        lost=sum(row["lost"] + row["doubled"] for row in chaos),
        chosen=active["ARR"],
        random=active["Random"],
        older=older_sampler(served),
    )


def measured(results: Path = RESULTS) -> str:
    """Return README's table: one number per cell."""
    found = headline(results)
    rows = [
        [
            "seconds per epoch of an MLP, relative to a hand-written loop",
            number(found.overhead),
            number(found.skorch),
            "skorch",
        ],
        [
            "seconds to the next update after a rank was killed",
            number(found.killed),
            number(found.started, 0),
            "starting a rank",
        ],
        [
            "calls until a search is as good as random search at its end",
            number(found.first, 0),
            number(found.random_search, 0),
            "random search",
        ],
        [
            "seconds of a search to 88 % accuracy, two workers",
            number(found.fast, 0),
            number(found.slow, 0),
            "Hyperband in its plan's order",
        ],
        [
            f"answers until a map predicts 82 % of new ones, simulated crowd{found.older}",
            number(found.chosen, 0),
            number(found.random, 0),
            "random questions",
        ],
        [
            f"of {found.answers:,} answers, lost or doubled in {found.faults} tries with faults",
            str(found.lost),
            "–",
            "–",
        ],
    ]
    heads = ("measured", "accelerando", "other", "which is")
    return markdown(heads, rows)


def reasons(results: Path = RESULTS) -> str:
    """Return README's three reasons, each with a number that was measured."""
    found = headline(results)
    return "\n".join(
        [
            "- **Training gives the same result whatever happens to the workers.** Ranks may be "
            "killed, added or removed: the parameters equal those of one process up to rounding. "
            f"The next update follows {number(found.killed)} s after a kill.",
            "- **A search is ahead on a public benchmark.** It is as accurate as random search at "
            f"its end after {percent(found.first / found.random_search, 0)} of the calls.",
            "- **People answer fewer questions.** A map of 90 items is as accurate with "
            f"{percent(found.chosen / found.random, 0)} of the answers that random questions "
            f"need{found.older}.",
        ]
    )


def readme(text: str, results: Path = RESULTS) -> str:
    """Return README with its measured parts between their marks."""
    for name, part in (("reasons", reasons(results)), ("measured", measured(results))):
        before, begin, rest = text.partition(f"<!-- {name}: written by docs/performance.py -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        text = f"{before}{begin}{part}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    README.write_text(readme(README.read_text()))
    print(f"Written: {PAGE.relative_to(ROOT)} and the measured rows of README.md")
