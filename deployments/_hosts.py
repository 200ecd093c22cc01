"""Hosts in network namespaces: a Dask cluster by hand, firewalls, SSH and TLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _namespaces import Machine, run, switched

HERE = Path(__file__).parent
DASK = (sys.executable, "-m", "dask")
SSHD = "/usr/sbin/sshd"


def missing(*programs: str) -> str | None:
    """Return which programs are not installed; None if all are."""
    absent = [
        name
        for name in programs
        if shutil.which(name, path="/usr/sbin:" + os.environ["PATH"]) is None
    ]
    return f"{', '.join(absent)} not installed." if absent else None


@contextlib.contextmanager
def hosts(count: int) -> Iterator[tuple[Machine, list[Machine]]]:
    """Make a hub, where the scheduler and the user are, and hosts for workers."""
    with switched(count, f"{os.getpid()}h") as (hub, others):
        yield hub, others


def only_ports(machine: Machine, first: int, last: int) -> None:
    """Let a firewall pass connections from outside to these ports only."""
    rules = (
        ("-i", "lo", "-j", "ACCEPT"),
        ("-m", "state", "--state", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
        ("-p", "tcp", "--dport", f"{first}:{last}", "-j", "ACCEPT"),
        ("-p", "tcp", "-j", "DROP"),
    )
    for rule in rules:
        run(*machine.words("iptables", "-A", "INPUT", *rule))


def chosen_ports(machine: Machine, first: int, last: int) -> None:
    """Let the system choose ports from this range."""
    run(*machine.words("sysctl", "-q", "-w", f"net.ipv4.ip_local_port_range={first} {last}"))


@contextlib.contextmanager
def started(folder: Path) -> Iterator[object]:
    """Yield a function that starts processes; end them afterwards."""
    running: list[subprocess.Popen[bytes]] = []
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

    def start(machine: Machine, *words: str, **environment: str) -> None:
        values = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **environment}
        with (folder / f"{len(running)}.log").open("wb") as said:
            process = subprocess.Popen(
                machine.words(*words), env=values, stdout=said, stderr=said, cwd=folder
            )
        running.append(process)

    try:
        yield start
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def dask_by_hand(
    hub: Machine,
    workers: list[Machine],
    *,
    scheme: str = "tcp",
    options: tuple[str, ...] = (),
    tls: tuple[str, ...] = (),
    python: dict[str, str] | None = None,
) -> Iterator[str]:
    """Start a scheduler in the hub and a worker on each host, as docs/cluster-ssh.md does."""
    python = python or {}
    address = f"{scheme}://{hub.address}:8786"
    with tempfile.TemporaryDirectory() as name, started(Path(name)) as start:
        start(hub, *DASK, "scheduler", "--host", address, "--no-dashboard", *tls)
        time.sleep(2.0)
        for machine in workers:
            there = ["--host", machine.address, "--nthreads", "1", "--no-dashboard"]
            there += ["--worker-port", "9000", "--nanny-port", "9001"]
            dask = (python.get(machine.address, sys.executable), "-m", "dask")
            start(machine, *dask, "worker", address, *there, *options, *tls)
        yield address


@contextlib.contextmanager
def sshd(machines: list[Machine], folder: Path) -> Iterator[dict[str, str]]:
    """Let hosts accept SSH with a new key; yield the paths of the key and of the known hosts."""
    for name in ("user", "host"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "user.pub", folder / "authorized")
    public = " ".join((folder / "host.pub").read_text().split()[:2])
    known = "".join(f"{machine.address} {public}\n" for machine in machines)
    (folder / "known").write_text(known)
    Path("/run/sshd").mkdir(exist_ok=True)
    with started(folder) as start:
        for machine in machines:
            options = {
                "ListenAddress": machine.address,
                "HostKey": str(folder / "host"),
                "AuthorizedKeysFile": str(folder / "authorized"),
                "PidFile": "none",
                "StrictModes": "no",
                "UsePAM": "no",
                "PasswordAuthentication": "no",
                "PermitRootLogin": "prohibit-password",
            }
            words = [word for item in options.items() for word in ("-o", "=".join(item))]
            start(machine, SSHD, "-D", "-e", "-f", "/dev/null", *words)
        time.sleep(1.0)
        yield {"key": str(folder / "user"), "known_hosts": str(folder / "known")}


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and one certificate for all processes, for some hours."""
    subject = ("-subj", "/CN=accelerando", "-days", "1")
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject)
    run(*new, "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"))
    request = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=dask")
    run(*request, "-keyout", str(folder / "key.pem"), "-out", str(folder / "request.pem"))
    sign = ("openssl", "x509", "-req", "-days", "1", "-in", str(folder / "request.pem"))
    authority = ("-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial")
    run(*sign, *authority, "-out", str(folder / "cert.pem"))
    return {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}
