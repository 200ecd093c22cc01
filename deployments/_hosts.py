"""Hosts in network namespaces: a Dask cluster by hand, firewalls, SSH and TLS."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from _namespaces import Machine, run, switched

HERE = Path(__file__).parent
# A dozen idle processes of Dask would take a third of two processors.
QUIET = {
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "5s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL": "250ms",
}
DASK = (sys.executable, "-m", "dask")
AGAIN = ("sh", "-c", 'while :; do "$@"; sleep 0.2; done', "sh")
SSHD = "/usr/sbin/sshd"
UNWANTED = "hostname of the client socket"  # of hosts without reverse lookup, as these here
SECOND = "10.78.0"  # the network of the second cards


@contextlib.contextmanager
def hosts(count: int, name: str = "h") -> Iterator[tuple[Machine, list[Machine]]]:
    """Make a hub, where the scheduler and the user are, and hosts for workers."""
    with switched(count, f"{os.getpid()}{name}") as (hub, others):
        yield hub, others


@contextlib.contextmanager
def hosts_on_ipv6(count: int, name: str = "v") -> Iterator[tuple[Machine, list[Machine]]]:
    """Make a hub and hosts that have IPv6 addresses and no others."""
    with switched(count, f"{os.getpid()}{name}") as (hub, others):
        moved = []
        for i, (machine, card) in enumerate([(hub, "switch"), *((m, "eth0") for m in others)], 1):
            address = f"fd77::{i:x}"
            run(*machine.words("ip", "-4", "address", "flush", "dev", card))
            # Without "nodad" the address cannot be used for the first second.
            words = ("ip", "address", "add", f"{address}/64", "dev", card, "nodad")
            run(*machine.words(*words))
            moved.append(replace(machine, address=address))
        yield moved[0], moved[1:]


def second_cards(hub: Machine, machines: list[Machine]) -> None:
    """Give machines a second network card, on a switch to which the hub does not belong."""
    run(*hub.words("ip", "link", "add", "second", "type", "bridge"))
    run(*hub.words("ip", "link", "set", "second", "up"))
    for i, machine in enumerate(machines, 1):
        ends = ("ip", "link", "add", f"other{i}", "type", "veth", "peer", "name", "eth1")
        run(*hub.words(*ends, "netns", machine.namespace))
        run(*hub.words("ip", "link", "set", f"other{i}", "master", "second", "up"))
        run(*machine.words("ip", "address", "add", f"{SECOND}.{i}/24", "dev", "eth1"))
        run(*machine.words("ip", "link", "set", "eth1", "up"))


@contextlib.contextmanager
def apart(hub: Machine, machines: list[Machine]) -> Iterator[None]:
    """Let machines reach each other on their second cards only, and the hub on both."""
    address = (f"{SECOND}.254/24", "dev", "second")
    run(*hub.words("ip", "address", "add", *address))
    _isolate(hub, machines, "on")
    try:
        yield
    finally:
        _isolate(hub, machines, "off")
        run(*hub.words("ip", "address", "delete", *address))


def _isolate(hub: Machine, machines: list[Machine], switched_on: str) -> None:
    for i in range(len(machines)):
        words = ("ip", "link", "set", "dev", f"port{i}", "type", "bridge_slave")
        run(*hub.words(*words, "isolated", switched_on))


def only_ports(machine: Machine, *ranges: tuple[int, int], refuses: bool = False) -> None:
    """Let a firewall pass connections from outside to these ports only.

    It does not answer the others, or refuses them.
    """
    rest = ("REJECT", "--reject-with", "tcp-reset") if refuses else ("DROP",)
    rules = [
        ("-i", "lo", "-j", "ACCEPT"),
        ("-m", "state", "--state", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
        *(("-p", "tcp", "--dport", f"{a}:{b}", "-j", "ACCEPT") for a, b in ranges),
        ("-p", "tcp", "-j", *rest),
    ]
    for rule in rules:
        run(*machine.words("iptables", "-A", "INPUT", *rule))


@contextlib.contextmanager
def router(hub: Machine, machine: Machine, port: int) -> Iterator[str]:
    """Let the hub pass one of its ports on to port 9000 of a machine; yield its address."""
    rules = [
        (chain, "-d", hub.address, "-p", "tcp", "--dport", str(port), "-j", "DNAT")
        for chain in ("PREROUTING", "OUTPUT")
    ]
    rules = [(*rule, "--to-destination", f"{machine.address}:9000") for rule in rules]
    rules.append(("POSTROUTING", "-d", machine.address, "-p", "tcp", "-j", "MASQUERADE"))
    run(*hub.words("sysctl", "-q", "-w", "net.ipv4.ip_forward=1"))
    for rule in rules:
        run(*hub.words("iptables", "-t", "nat", "-A", *rule))
    try:
        yield url(hub, port)
    finally:
        for rule in rules:
            run(*hub.words("iptables", "-t", "nat", "-D", *rule))


def chosen_ports(machine: Machine, first: int, last: int) -> None:
    """Let the system choose ports from this range."""
    run(*machine.words("sysctl", "-q", "-w", f"net.ipv4.ip_local_port_range={first} {last}"))


def await_port(machine: Machine, port: int, seconds: float = 300.0) -> None:
    """Wait until something listens on a port of a machine."""
    ipv6 = ":" in machine.address
    listening = f":{port:04X} {'0' * (32 if ipv6 else 8)}:0000 0A"
    deadline = time.monotonic() + seconds
    while listening not in run(*machine.words("cat", f"/proc/net/tcp{'6' * ipv6}")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Nothing listens at {machine.address}:{port} after {seconds:g} s.")
        time.sleep(0.1)


@contextlib.contextmanager
def started(folder: Path) -> Iterator[object]:
    """Yield a function that starts processes; end them afterwards, and look into their logs."""
    running: list[subprocess.Popen[bytes]] = []
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

    def start(machine: Machine, *words: str, **environment: str) -> None:
        fixed = {**QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        values = {**os.environ, **fixed, **environment}
        with (folder / f"{len(running)}.log").open("wb") as said:
            process = subprocess.Popen(
                machine.words(*words),
                env=values,
                stdout=said,
                stderr=said,
                cwd=folder,
                start_new_session=True,
            )
        running.append(process)

    try:
        yield start
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with contextlib.suppress(ProcessLookupError):  # no worker without its Nanny is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for log in folder.glob("*.log"):
        if UNWANTED in (said := log.read_text(errors="replace")):
            raise AssertionError(f"c10d warns: {said[-3000:]}")


def url(machine: Machine, port: int, scheme: str = "tcp") -> str:
    """Return the address of a port as Dask writes it."""
    shown = f"[{machine.address}]" if ":" in machine.address else machine.address
    return f"{scheme}://{shown}:{port}"


@contextlib.contextmanager
def dask_by_hand(
    hub: Machine,
    workers: list[Machine],
    *,
    scheme: str = "tcp",
    options: tuple[str, ...] = (),
    again: bool = False,
    python: tuple[str, ...] = (sys.executable,),
) -> Iterator[str]:
    """Start a scheduler in the hub and a worker on each host, as docs/cluster-ssh.md does.

    Yield the address of the scheduler. `options` are for both, `python` is the scheduler's. With
    `again`, those that end are started again, as systemd would.
    """
    before = AGAIN if again else ()
    dask = (*before, *DASK)
    address = url(hub, 8786, scheme)
    with tempfile.TemporaryDirectory() as name, started(Path(name)) as start:
        tls = [option for option in options if option.startswith("--tls")]
        words = ("-m", "dask", "scheduler", "--host", address, "--no-dashboard", *tls)
        start(hub, *before, *python, *words)
        await_port(hub, 8786)
        for machine in workers:
            # Dask adds the port; an IPv6 address without brackets ends its worker.
            host = url(machine, 0, scheme).rpartition(":")[0]
            start(machine, *dask, *worker_words(address), "--host", host, *options)
        yield address


def worker_words(scheduler: str) -> tuple[str, ...]:
    """Return the command of a worker, whose ports firewalls know."""
    ports = ("--worker-port", "9000", "--nanny-port", "9001")
    return ("worker", scheduler, "--nthreads", "1", "--no-dashboard", *ports)


@contextlib.contextmanager
def another_worker(
    machine: Machine,
    scheduler: str,
    *options: str,
    python: tuple[str, ...] = (sys.executable,),
    chosen: bool = True,
) -> Iterator[None]:
    """Start one more worker, in whatever way it is odd; its ports are those of all others."""
    words = worker_words(scheduler) if chosen else ("worker", scheduler, "--no-dashboard")
    with tempfile.TemporaryDirectory() as name, started(Path(name)) as start:
        start(machine, *python, "-m", "dask", *words, *options)
        yield


@contextlib.contextmanager
def sshd(machines: list[Machine], folder: Path) -> Iterator[dict[str, str]]:
    """Let hosts accept SSH; yield the environment of a user who has a key and knows the hosts."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for path in (folder / "host", home / ".ssh" / "id_ed25519"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
    public = " ".join((folder / "host.pub").read_text().split()[:2])
    known = "".join(f"{machine.address} {public}\n" for machine in machines)
    (home / ".ssh" / "known_hosts").write_text(known)
    Path("/run/sshd").mkdir(exist_ok=True)
    with started(folder) as start:
        for machine in machines:
            options = {
                "ListenAddress": machine.address,
                "HostKey": str(folder / "host"),
                "AuthorizedKeysFile": str(home / ".ssh" / "id_ed25519.pub"),
                "PidFile": "none",
                "StrictModes": "no",
                "UsePAM": "no",
                "PasswordAuthentication": "no",
                "PermitRootLogin": "prohibit-password",
            }
            words = [word for item in options.items() for word in ("-o", "=".join(item))]
            start(machine, SSHD, "-D", "-e", "-f", "/dev/null", *words)
        for machine in machines:
            await_port(machine, 22)
        yield {"HOME": str(home)}


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
