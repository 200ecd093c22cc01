"""Every example runs, in a process of its own, without a warning."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def runner():
    """A process that runs scripts; importing what they need takes longer than most of them."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.run_warm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # two waiting threads are slow on busy cores
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path, runner):
    print(json.dumps([str(path), str(tmp_path)]), file=runner.stdin, flush=True)
    code, output, errors = json.loads(runner.stdout.readline())
    assert code == 0, errors
    # Processors differ in the last digits, so the words are compared and not the numbers.
    assert words(output) == words(shown_output(path.stem)), "run `python docs/gallery.py`"


def words(text):
    """The text without its numbers and the width of its columns."""
    return re.sub(r"[\s─]+", " ", re.sub(r"-?\d[\d.,]*(e-?\d+)?", "0", text)).strip()


def shown_output(name):
    page = (ROOT / "docs" / "gallery" / f"{name}.md").read_text()
    return re.search(r"It prints:\n\n```text\n(.*?)\n```", page, re.DOTALL)[1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 70
