"""Debian's packages: whoever needs a program installs it, and no daemon is started by that."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PACKAGES = {
    "faketime": "faketime",
    "iptables": "iptables",
    "mungekey": "munge",
    "munged": "munge",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "sbatch": "slurm-wlm",
    "scancel": "slurm-wlm",
    "scontrol": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "squeue": "slurm-wlm",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "sysctl": "procps",
    "unshare": "util-linux",
}
_POLICY = Path("/usr/sbin/policy-rc.d")


def missing(*programs: str) -> str | None:
    """Return which programs are neither installed nor can be; None if all are there."""
    absent = _absent(programs)
    if absent and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(tuple(sorted({PACKAGES[name] for name in absent})))
        absent = _absent(programs)
    if not absent:
        return None
    packages = " ".join(sorted({PACKAGES[name] for name in absent}))
    return f"No {', '.join(absent)}: apt-get install {packages}."


def _absent(programs: tuple[str, ...]) -> list[str]:
    where = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
    return [name for name in programs if shutil.which(name, path=where) is None]


@functools.cache  # what could not be installed once is not tried again
def _install(packages: tuple[str, ...]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_daemons():
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            command = ["apt-get", "-qq", *words]
            subprocess.run(command, env=environment, check=False, capture_output=True)


@contextlib.contextmanager
def _no_daemons() -> Iterator[None]:
    """Let Debian start no daemon that it installs: an sshd would listen on every address."""
    if _POLICY.exists():  # the machine has a policy of its own
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
