"""Real deployments on this machine, in network namespaces. ``make test-deploy`` runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "benchmarks"), str(HERE)]


def run_scenario(
    words: Any, kind: str, options: dict[str, Any], seconds: float = 240.0, **environment: str
) -> dict[str, Any]:
    """Run ``scenario.py`` where `words` says, and return what it has found."""
    command = words(sys.executable, str(HERE / "scenario.py"), kind, json.dumps(options))
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["stderr"] = done.stderr
    return found


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """Skip everything where network namespaces cannot be made."""
    from _namespaces import why_not

    if (why := why_not()) is not None:
        pytest.skip(why)
