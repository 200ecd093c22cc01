"""``accelerando crowd demo``: one command, people who answer over HTTP, nothing left behind."""

import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from accelerando.cli import main


def test_a_negative_number_of_people_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["crowd", "demo", "--people", "-1"]) == 2
    assert (
        "'--people' parameter of crowd demo must be an integer of at least 0. Got -1"
        in capsys.readouterr().err
    )


def test_the_demo_runs_and_leaves_nothing_behind(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "accelerando", "crowd", "demo", "--no-browser"]
    command += ["--port", "0", "--people", "4", "--answers", "12"]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ACCELERANDO_PASSWORD", "look at the colors")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("stop:"):
                break
        try:
            base = re.search(r"dashboard:\s+(http://\S+)/experiments/colors", said)
            assert base is not None
            assert list(tmp_path.glob("accelerando-demo-*"))
            answered = _answers(base[1])
        finally:
            process.send_signal(signal.SIGINT)
            said += process.stdout.read()
    assert process.returncode == 0
    assert answered >= 12
    assert "The answers of the demo are deleted" in said
    assert list(tmp_path.glob("accelerando-demo-*")) == []


def _answers(base: str) -> int:
    """Wait until the simulated people have said what they had to say."""
    from accelerando.crowd.client import Experimenter

    for _ in range(600):
        try:
            urllib.request.urlopen(f"{base}/health/live", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    experimenter = Experimenter(base, "look at the colors")
    count = 0
    for _ in range(600):
        count = int(experimenter.summary("colors")["answers"])
        if count >= 12:
            break
        time.sleep(0.1)
    experimenter.close()
    return count
