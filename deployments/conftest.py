"""Real deployments on this machine, in network namespaces. ``make test-deploy`` runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "benchmarks"), str(HERE)]


def run_scenario(
    words: Any,
    where: str,
    *steps: str | dict[str, Any],
    seconds: float = 1000.0,
    environment: dict[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run ``scenario.py`` where `words` says, and return what each step has found.

    A scenario that takes longer than `seconds` is an error: that is how a fit without an end shows.
    """
    import _hosts

    options["steps"] = [{"do": step} if isinstance(step, str) else step for step in steps]
    command = words(sys.executable, str(HERE / "scenario.py"), where, json.dumps(options))
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        env={
            **os.environ,
            **_hosts.QUIET,  # also for the jobs of SLURM
            "PYTHONPATH": paths,
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["stderr"] = done.stderr
    for name, one in found.items():
        if isinstance(one, dict) and "seconds" in one:
            print(f"{name}: {one['seconds']:.0f} s; {one['error']}")  # pytest -rP shows it
    return found


def works(found: dict[str, Any], ranks: int = 2) -> None:
    """Check that ranks gave the result of one process."""
    assert found["error"] is None, found
    assert found["ranks"] == ranks
    assert found["difference"] < 1e-12  # float64; the order in which floats are added differs


def gives_up(found: dict[str, Any], sentence: str) -> str:
    """Check that a fit ended with a ClusterError that begins with a sentence; return all of it."""
    said = str(found["error"])
    assert said.startswith(f"ClusterError: {sentence}"), found
    return said


def needs(*programs: str) -> None:
    """Skip a test where programs are missing and cannot be installed."""
    import _packages

    if (why := _packages.missing(*programs)) is not None:
        pytest.skip(why)


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """Skip everything where network namespaces cannot be made."""
    from _namespaces import why_not

    if (why := why_not()) is not None:
        pytest.skip(why)
    # A run that is told to end takes its namespaces and daemons away, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="module")
def network() -> Iterator[Any]:
    """A hub, two hosts, and a third one for workers that are odd."""
    import _hosts

    with _hosts.hosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(network: Any) -> Iterator[str]:
    """The address of a scheduler, with two workers that were started by hand."""
    import _hosts

    hub, others = network
    with _hosts.dask_by_hand(hub, others[:2]) as address:
        yield address


@pytest.fixture
def fresh() -> Iterator[Any]:
    """A hub and two hosts on which nothing runs."""
    import _hosts

    with _hosts.hosts(2, "f") as made:
        yield made
