"""Write docs/evidence.md from benchmarks/results: python docs/evidence.py

A row per headline claim of the four papers behind accelerando. What was measured is read from the
results that the benchmarks wrote, so that the page cannot say anything else. A claim without
results says so. To add a result to a claim, either write a reader in evidence_claims.py, or let the
benchmark write an entry ``"evidence": {"<claim>": {"measured": "...", "verdict": "..."}}`` at the
top level of its JSON: every file is searched for these.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from evidence_claims import CLAIMS, NO, NOT_YET, PAPERS, PARTLY, VERDICTS, YES, Claim, Measured

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "evidence.md"
# Benchmarks of human answers, which are not part of the repository.
NEEDS_A_FILE = {"human_replay.py": " --answers FILE", "trust.py": " --answers FILE"}


def facts(results: Path) -> dict[str, tuple[Measured, str]]:
    """Collect what result files say about claims by themselves."""
    found = {}
    for path in sorted(results.glob("*.json")):
        content = json.loads(path.read_text())
        for key, entry in content.get("evidence", {}).items():
            measured = Measured(entry["measured"], entry["verdict"])
            if key not in {claim.key for claim in CLAIMS} or measured.verdict not in VERDICTS:
                raise ValueError(
                    f"{path.name}: evidence must map a claim of docs/evidence.py to measured and a "
                    f"verdict of {', '.join(VERDICTS)}. Got {key!r}: {measured.verdict!r}."
                )
            found[key] = (measured, f"`{content['command']}`")
    return found


def row(claim: Claim, results: Path, by_files: dict[str, tuple[Measured, str]]) -> list[str]:
    """Return the cells of one claim."""
    if claim.key in by_files:
        measured, rerun = by_files[claim.key]
        return [claim.claim, claim.reported, measured.text, measured.verdict, rerun]
    if claim.script is None:
        return [claim.claim, claim.reported, "–", NOT_YET, "no benchmark yet"]
    if claim.script == "":  # what follows from formulas is computed here
        assert claim.read is not None
        measured = claim.read(None)
        return [claim.claim, claim.reported, *measured, "`python docs/evidence.py`"]
    rerun = f"`python benchmarks/{claim.script}{NEEDS_A_FILE.get(claim.script, '')}`"
    path = results / Path(claim.script).with_suffix(".json").name
    if not path.exists():
        return [claim.claim, claim.reported, "–", NOT_YET, rerun]
    if claim.read is None:
        text = f"measured, see `benchmarks/results/{path.name}`"
        return [claim.claim, claim.reported, text, "see there", rerun]
    measured = claim.read(json.loads(path.read_text()))
    return [claim.claim, claim.reported, *measured, rerun]


def page(results: Path = RESULTS) -> str:
    """Return the page."""
    by_files = facts(results)
    rows = {claim.key: row(claim, results, by_files) for claim in CLAIMS}
    lines = [
        "# What the papers claim, and what we measured",
        "",
        "<!-- Written by docs/evidence.py from benchmarks/results. Change that, not this. -->",
        "",
        "accelerando builds on four papers. Here is every headline claim of theirs, what they "
        "reported and on what, and what this library does on far smaller machines: two cores, no "
        "GPU, small networks and data sets. A *yes* therefore means that the effect is there and "
        "about as large, not that the same experiment was repeated. What did not come out is in "
        "the table, too.",
        "",
        "The third column is read from `benchmarks/results/*.json`, which the command in the last "
        "one writes, with versions and settings; a test fails while this page and the results "
        "differ. "
        "`python docs/evidence.py` writes it anew.",
        "",
    ]
    for paper in PAPERS:
        lines += [
            f"## {paper.split('(')[-1].rstrip(')')}",
            "",
            f"{paper.split(' (')[0]}.",
            "",
            "| claim | they reported | measured here | reproduced | run it again |",
            "|---|---|---|---|---|",
            *(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in rows[claim.key]) + " |"
                for claim in CLAIMS
                if claim.paper == paper
            ),
            "",
        ]
    missing = [claim for claim in CLAIMS if rows[claim.key][3] != YES]
    lines += ["## What did not reproduce, or not fully", ""]
    for claim in missing:
        cells = rows[claim.key]
        if cells[3] in (NO, PARTLY):
            lines.append(f"- **{claim.claim}** ({cells[3].strip('*')}): {cells[2]}.")
    waiting = sum(rows[claim.key][3] == NOT_YET for claim in CLAIMS)
    lines += ["", f"{waiting} of {len(CLAIMS)} claims have not been measured yet.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == text else "docs/evidence.md is out of date.")
    PAGE.write_text(text)
