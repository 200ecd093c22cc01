"""Debian's SLURM with one node, in a network namespace without a way out."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _namespaces import Machine, run, switched

PROGRAMS = (
    *("munged", "mungekey", "nsenter", "unshare"),
    *("slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue", "sinfo"),
)

CONFIGURATION = """\
ClusterName=accelerando
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=2
InactiveLimit=0
MessageTimeout=100
TCPTimeout=30
BatchStartTimeout=300
MinJobAge=10
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=normal Nodes=localhost Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@dataclass
class Slurm:
    """A running SLURM."""

    machine: Machine
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def words(self, *command: str) -> list[str]:
        """Return the command line that runs a command in there.

        ``ip netns exec`` hides /sys/fs/cgroup, without which slurmd does not start. SLURM looks up
        the name of its host, which need not have an address.
        """
        named = ["unshare", "--uts", "sh", "-c", 'hostname localhost; exec "$@"', "sh"]
        return ["nsenter", f"--net=/run/netns/{self.machine.namespace}", *named, *command]

    def call(self, *words: str) -> str:
        """Run a command of SLURM and return what it says."""
        done = subprocess.run(
            self.words(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            logs = "\n".join(f.read_text()[-1500:] for f in self.folder.glob("slurm*.log"))
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}\n{logs}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the numbers of the jobs that run or wait."""
        return self.call("squeue", "--noheader", "--format=%i").split()


@contextlib.contextmanager
def slurm(folder: Path, cpus: int = 4) -> Iterator[Slurm]:
    """Start SLURM, and end it with all its jobs."""
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    text = CONFIGURATION.format(folder=folder, cpus=cpus)
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # loaded, and not used
    # SLURM looks up names only where there is an address beside that of the loopback device.
    with switched(0, f"{os.getpid()}s") as (machine, _):
        running = Slurm(machine, folder)
        key = folder / "munge.key"
        run("mungekey", "--create", f"--keyfile={key}")
        names = ("socket", "pid", "log", "seed")
        where = [f"--{n}{'' if n == 'socket' else '-file'}={folder}/munge.{n}" for n in names]
        running.call("munged", "--force", f"--key-file={key}", *where)
        running.call("slurmctld")
        running.call("slurmd")
        deadline = time.monotonic() + 300
        while "idle" not in (said := running.call("sinfo", "--noheader", "--format=%T")):
            if time.monotonic() > deadline:
                logs = [(folder / f"{n}.log").read_text()[-1500:] for n in ("slurmctld", "slurmd")]
                raise RuntimeError(f"SLURM's node is {said}.\n" + "\n".join(logs))
            time.sleep(0.2)
        try:
            yield running
        finally:
            with contextlib.suppress(RuntimeError):
                running.call("scancel", "--user=root")
