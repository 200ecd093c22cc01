"""Debian packages that tests need, installed where that is allowed."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def install(*names: str) -> None:
    """Install packages with apt-get, one test process after the other; nothing if it may not."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with Path(tempfile.gettempdir(), "accelerando-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["update"], ["install", "-y", "--no-install-recommends", *names]):
            subprocess.run(
                ["apt-get", "-qq", *command], env=environment, check=False, capture_output=True
            )
