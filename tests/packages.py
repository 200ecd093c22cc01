"""Debian packages that tests need, installed where that is allowed."""

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_POLICY = Path("/usr/sbin/policy-rc.d")


@functools.cache  # what could not be installed once is not tried again
def install(*names: str) -> str:
    """Install packages with apt-get, one test process after the other; nothing if it may not.

    apt-get gives up at once while somebody else holds its locks, so it is told to wait. No daemon
    starts: an sshd would listen on every address.

    Returns
    -------
    said : str
        What apt-get said if it could not; empty otherwise.
    """
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "Only root can install packages, with apt-get."
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with Path(tempfile.gettempdir(), "accelerando-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _no_daemons():
            for words in (["update"], ["install", "-y", "--no-install-recommends", *names]):
                done = subprocess.run(
                    ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *words],
                    env=environment,
                    check=False,
                    capture_output=True,
                    text=True,
                )
    return f"apt-get said: {done.stderr.strip()[-300:]}" if done.returncode else ""


@contextlib.contextmanager
def _no_daemons() -> Iterator[None]:
    if _POLICY.exists():  # the machine has a policy of its own
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
