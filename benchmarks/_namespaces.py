"""Machines that are only network namespaces, on a switch that exists nowhere else.

Every namespace has one cable to a bridge in its own namespace, the hub. No cable leads to the
machine's own network, so that nothing that happens here is seen outside. At the end, after Ctrl-C
and after errors, too, the processes in there are ended and the namespaces removed. Needs root, and
iproute2, which is installed where apt-get can do it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

SUBNET = "10.77.0"
HUB = f"{SUBNET}.254"


def why_not() -> str | None:
    """Return why namespaces cannot be made here; None if they can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "Network namespaces need root: run it with sudo."
    if _missing() and shutil.which("apt-get"):
        _install("iproute2")
    if _missing():
        return f"Network namespaces need {' and '.join(_missing())} of iproute2: install it."
    name = f"acc{os.getpid()}try"
    try:
        run("ip", "netns", "add", name)
        # A kernel may have namespaces and no token bucket.
        run("ip", "netns", "exec", name, *_limiting("lo", 1e6))
    except RuntimeError as error:
        return f"Limited networks cannot be made here. {error}"
    finally:
        with contextlib.suppress(RuntimeError):
            run("ip", "netns", "delete", name)
    return None


def _missing() -> list[str]:
    return [tool for tool in ("ip", "tc") if shutil.which(tool) is None]


def _install(package: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
        subprocess.run(
            ["apt-get", "-qq", *words], env=environment, check=False, capture_output=True
        )


def run(*words: str) -> str:
    """Run a command of iproute2; what it says comes with the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _limiting(device: str, bits_per_second: float) -> list[str]:
    """Return the command for a token bucket of 2 ms, or the least the kernel's clock allows."""
    burst = max(20_000, int(bits_per_second / 8 * 0.002))
    rate = f"{int(bits_per_second)}bit"
    words = ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate]
    return [*words, "burst", str(burst), "latency", "200ms"]


@dataclass(frozen=True)
class Machine:
    """A namespace with one address."""

    namespace: str
    address: str

    def words(self, *command: str) -> list[str]:
        """Return the command line that runs a command in there."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def limit(self, bits_per_second: float) -> None:
        """Let it send no faster."""
        run(*self.words(*_limiting("eth0", bits_per_second)))

    def free(self) -> None:
        """Let it send as fast as it can."""
        with contextlib.suppress(RuntimeError):  # there was no limit
            run(*self.words("tc", "qdisc", "delete", "dev", "eth0", "root"))

    def sent_bytes(self) -> int:
        """Return what it has sent since it was made, headers included."""
        return int(run(*self.words("cat", "/sys/class/net/eth0/statistics/tx_bytes")))

    def pids(self) -> list[int]:
        """Return the processes in there."""
        try:
            return [int(word) for word in run("ip", "netns", "pids", self.namespace).split()]
        except RuntimeError:  # there is no such namespace
            return []


def machines(count: int, tag: str) -> tuple[Machine, list[Machine]]:
    """Name a hub and `count` machines."""
    hub = Machine(f"acc{tag}hub", HUB)
    return hub, [Machine(f"acc{tag}n{i}", f"{SUBNET}.{i}") for i in range(1, count + 1)]


@contextlib.contextmanager
def switched(count: int, tag: str) -> Iterator[tuple[Machine, list[Machine]]]:
    """Make a hub and machines, and take them away at the end, whatever happened."""
    hub, others = machines(count, tag)
    try:
        run("ip", "netns", "add", hub.namespace)
        run(*hub.words("ip", "link", "set", "lo", "up"))
        run(*hub.words("ip", "link", "add", "switch", "type", "bridge"))
        run(*hub.words("ip", "address", "add", f"{hub.address}/24", "dev", "switch"))
        run(*hub.words("ip", "link", "set", "switch", "up"))
        for i, machine in enumerate(others):
            name = machine.namespace
            run("ip", "netns", "add", name)
            run(*machine.words("ip", "link", "set", "lo", "up"))
            # Both ends are made inside of namespaces: the machine's own never has one.
            port = f"port{i}"
            words = ("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns")
            run(*hub.words(*words, name))
            run(*hub.words("ip", "link", "set", port, "master", "switch", "up"))
            run(*machine.words("ip", "address", "add", f"{machine.address}/24", "dev", "eth0"))
            run(*machine.words("ip", "link", "set", "eth0", "up"))
        yield hub, others
    finally:
        with _undisturbed():
            _end([*others, hub])
            for machine in (*others, hub):
                with contextlib.suppress(RuntimeError):
                    run("ip", "netns", "delete", machine.namespace)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let nobody interrupt the cleaning up; the impatient press Ctrl-C twice."""
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)


def _end(all_machines: list[Machine]) -> None:
    """End the processes in namespaces, kindly at first."""
    for number, seconds in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        pids = {pid for machine in all_machines for pid in machine.pids()}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while pids and time.monotonic() < deadline:
            time.sleep(0.1)
            pids = {pid for machine in all_machines for pid in machine.pids()}
        if not pids:
            return
