"""``accelerando crowd demo``: one command, people who answer over HTTP, nothing left behind."""

import re
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from accelerando.cli import main
from accelerando.crowd._demo_colors import colour_disc
from accelerando.crowd._demo_participants import habit


def test_the_colours_are_a_disc_of_different_colours():
    disc = colour_disc()
    assert len({colour.rgb for colour in disc}) == len(disc) == 24
    radii = {round(float(np.hypot(*colour.place)), 6) for colour in disc}
    assert radii == {0.0, 17.0, 34.0}


def test_one_in_ten_does_not_look():
    rng = np.random.default_rng(0)
    careless = [habit(rng).careless for _ in range(2000)]
    assert 150 < sum(careless) < 250


def test_a_negative_number_of_people_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["crowd", "demo", "--people", "-1"]) == 2
    assert "--people must be at least 0; got -1" in capsys.readouterr().err


def test_the_demo_runs_and_leaves_nothing_behind(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "accelerando", "crowd", "demo", "--no-browser"]
    command += ["--port", "0", "--people", "4", "--answers", "12"]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ACCELERANDO_PASSWORD", "look at the colours")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("stop:"):
                break
        try:
            base = re.search(r"dashboard:\s+(http://\S+)/experiments/colours", said)
            assert base is not None
            assert list(tmp_path.glob("accelerando-demo-*"))
            answered = _answers(base[1])
        finally:
            process.send_signal(signal.SIGINT)
            said += process.stdout.read()
    assert process.returncode == 0
    assert answered >= 12
    assert "the demo's answers are gone" in said
    assert list(tmp_path.glob("accelerando-demo-*")) == []


def _answers(base: str) -> int:
    """Wait until the simulated people have said what they had to say."""
    from accelerando.crowd.client import Experimenter

    for _ in range(600):
        try:
            urllib.request.urlopen(f"{base}/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    experimenter = Experimenter(base, "look at the colours")
    count = 0
    for _ in range(600):
        count = int(experimenter.summary("colours")["answers"])
        if count >= 12:
            break
        time.sleep(0.1)
    experimenter.close()
    return count
