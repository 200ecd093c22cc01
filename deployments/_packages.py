"""The programs that deployments need, and the Debian packages that bring them."""

from __future__ import annotations

import os
import shutil

from tests.packages import install

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


def missing(*programs: str) -> str | None:
    """Return which programs are neither installed nor can be, and why; None if all are there."""
    absent, why = _absent(programs), ""
    if absent:
        why = install(*sorted({PACKAGES[name] for name in absent}))
        absent = _absent(programs)
    if not absent:
        return None
    packages = " ".join(sorted({PACKAGES[name] for name in absent}))
    return f"No {', '.join(absent)}: apt-get install {packages}. {why}".rstrip()


def _absent(programs: tuple[str, ...]) -> list[str]:
    where = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
    return [name for name in programs if shutil.which(name, path=where) is None]
