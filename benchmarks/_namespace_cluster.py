"""A Dask cluster whose workers are in network namespaces, and a script that runs in its hub."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _namespaces import Machine, switched

PORT = 8786  # in the hub nobody else listens


def leave_properly() -> None:
    """Leave through all ``finally`` when ended by somebody else, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored


def found_inside(script: str, count: int, *options: str) -> Any:
    """Run a script in the hub of `count` machines; return what it has written as JSON.

    The script is called with ``--inside TAG FILE`` and the options: the tag is for
    :func:`_namespaces.machines`, the file for the results.
    """
    leave_properly()
    tag = str(os.getpid())
    with tempfile.TemporaryDirectory() as folder, switched(count, tag) as (hub, _):
        found = Path(folder) / "found.json"
        words = [sys.executable, script, "--inside", tag, str(found), *options]
        # Whatever ends this one ends that one: `switched` ends all processes in its namespaces.
        # In there names of hosts cannot be looked up, about which PyTorch would complain.
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONUNBUFFERED": "1"}
        environment = {**quiet, **os.environ}
        done = subprocess.Popen(hub.words(*words), env=environment).wait()
        if done:
            sys.exit(f"{Path(script).name} has failed in its namespace with code {done}.")
        return json.loads(found.read_text())


@contextlib.contextmanager
def cluster(hub: Machine, ranks: list[Machine]) -> Iterator[Any]:
    """Start a scheduler in the hub, where this runs, and one worker in each of the others."""
    from distributed import Client

    address = f"tcp://{hub.address}:{PORT}"
    dask = (sys.executable, "-m", "dask")
    # Workers have to find the models of the benchmarks, too.
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as said:

        def start(*words: str) -> None:
            process = subprocess.Popen(words, env=environment, stdout=said, stderr=said)
            started.append(process)

        try:
            here = ["--host", hub.address, "--port", str(PORT), "--no-dashboard"]
            start(*dask, "scheduler", *here)
            for machine in ranks:
                there = ["--host", machine.address, "--nthreads", "1", "--no-nanny"]
                there += ["--no-dashboard", "--memory-limit", "0"]
                start(*machine.words(*dask, "worker", address, *there))
            try:
                client = Client(address, timeout=120)
                client.wait_for_workers(len(ranks), timeout=120)
            except (OSError, TimeoutError):
                said.seek(0)
                print(said.read().decode(errors="replace")[-4000:], file=sys.stderr)
                raise
            with client:
                yield client
        finally:
            _end(started)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(started):
        process.terminate()
    for process in started:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
