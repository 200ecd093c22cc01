"""A real PostgreSQL for tests and benchmarks: installed if missing, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.packages import install


def binaries():
    """The folder with initdb and pg_ctl; None if there is none and none can be installed."""
    found = _find()
    if found is None:
        install("postgresql")
        found = _find()
    return found


def _find():
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name)
    for folder in [*reversed(folders), Path(shutil.which("initdb") or "/nowhere/x").parent]:
        if (folder / "initdb").exists():
            return folder
    return None


@contextmanager
def postgres(*settings):
    """URL of a fresh server with an empty database."""
    with restartable(*settings) as (url, _):
        yield url


@contextmanager
def restartable(*settings):
    """URL of a fresh server with an empty database, and a function that restarts the server.

    `settings` are those of postgresql.conf, such as "fsync=off".
    """
    folder = binaries()
    if folder is None:
        # Where everything can be installed a missing package is a broken set-up, not a reason.
        assert not os.environ.get("CI"), "PostgreSQL could not be installed on CI"
        pytest.skip("PostgreSQL is not installed, and apt-get cannot install it here")
    place = Path(tempfile.mkdtemp(prefix="crowd-postgres-"))
    # PostgreSQL refuses to run as root.
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if become:
        shutil.chown(place, "postgres")
    data, port = place / "data", _free_port()

    def run(*command):
        subprocess.run([*become, *map(str, command)], check=True, capture_output=True, cwd=place)

    try:
        run(folder / "initdb", "--no-sync", "-D", data, "-A", "trust", "-U", "crowd", "-E", "UTF8")
        options = f"-p {port} -k {place}"
        for one in ("listen_addresses=127.0.0.1", "max_connections=60", *settings):
            options += f" -c {one}"
        run(folder / "pg_ctl", "-D", data, "-w", "-o", options, "-l", place / "log", "start")
        try:
            run(folder / "createdb", "-h", "127.0.0.1", "-p", port, "-U", "crowd", "crowd")

            def restart():
                # "immediate" is a crash: PostgreSQL recovers from its log.
                control = (folder / "pg_ctl", "-D", data, "-w")
                run(*control, "-m", "immediate", "stop")
                run(*control, "-o", options, "-l", place / "log", "start")

            yield f"postgresql://crowd@127.0.0.1:{port}/crowd", restart
        finally:
            run(folder / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
