"""README and the performance page say what the results say; README stays short."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def performance(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("performance")


def test_both_pages_are_current(performance):
    hint = "Run `python docs/performance.py` and commit README.md and docs/performance.md."
    assert performance.PAGE.read_text() == performance.page(), hint
    assert performance.readme(README) == README, hint


def test_other_results_change_both_pages(performance, tmp_path):
    results = shutil.copytree(performance.RESULTS, tmp_path / "results")
    file = results / "elastic.json"
    found = json.loads(file.read_text())
    for row in found["rows"]:
        row["seconds"] = 77.0
    file.write_text(json.dumps(found))
    assert "| 77.000 |" in performance.page(results)
    changed = performance.readme(README, results)
    assert "77.00 s after a kill" in changed
    assert "| 77.00 | 77 |" in changed


def test_results_of_other_settings_of_the_sampler_are_named(performance, tmp_path):
    """The sampler changes from time to time, and its benchmarks take an hour."""
    settings = importlib.import_module("_sampler_settings")
    results = shutil.copytree(performance.RESULTS, tmp_path / "results")
    file = results / "serve_active.json"
    found = json.loads(file.read_text())
    for now in (True, False):
        for run in found["runs"]:
            run["settings"] = settings.fingerprint()
        if not now:
            next(r for r in found["runs"] if r["sampler"] == "ARR")["settings"] = "0"
        file.write_text(json.dumps(found))
        pages = performance.page(results), performance.readme(README, results)
        assert [page.count(settings.OLDER) for page in pages] == ([0, 0] if now else [1, 2])


def test_another_default_of_the_sampler_is_another_setting(performance, monkeypatch):
    settings = importlib.import_module("_sampler_settings")
    found = {settings.fingerprint()}
    for module, name in ((settings._guard, "_MARGIN"), (settings._choice, "LAPSES")):
        monkeypatch.setattr(module, name, 0.5)
        found.add(settings.fingerprint())
    assert len(found) == 3
    assert not settings.is_current([])


def test_a_cell_holds_one_number(performance):
    cells = [
        cell.strip()
        for page in (performance.page(), performance.measured())
        for line in page.splitlines()
        if line.startswith("|")
        for cell in line.strip("|").split(" | ")[1:]
    ]
    assert len(cells) > 500
    assert [cell for cell in cells if re.search(r"\d.*[;,] .*\d", cell)] == []


def test_every_script_exists_and_every_number_of_readme_is_written_by_the_script(performance):
    tables = [table for part in performance.TABLES.values() for table in part]
    assert [t.script for t in tables if not (ROOT / "benchmarks" / t.script).exists()] == []
    assert performance.measured().count("\n") <= 7  # the head, a rule, and six rows
    assert performance.reasons().count("\n- **") == 2
    by_hand = re.sub(r"<!-- (\w+): written by.*?<!-- end of \1 -->", "", README, flags=re.DOTALL)
    by_hand = re.sub(r"```.*?```", "", by_hand, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", by_hand) == ["3.11"]


def test_readme_is_short():
    assert 600 <= len(README.split()) <= 700


def test_the_first_program_prints_what_readme_shows():
    program, output = re.search(
        r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE
    ).groups()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == output
    sizes = [int(line.split()[2]) for line in output.splitlines()[1:]]
    assert sizes == sorted(set(sizes))
