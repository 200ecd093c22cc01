"""Machines that are only network namespaces, on a switch that exists nowhere else.

Every namespace has one cable to a bridge in a namespace of its own, the hub. No cable leads to the
machine's own network, so that nothing that happens here is seen outside. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

SUBNET = "10.77.0"
HUB = f"{SUBNET}.254"


def why_not() -> str | None:
    """Return why namespaces cannot be made here; None if they can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "Network namespaces need root: run it with sudo."
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"Network namespaces need {' and '.join(missing)} of iproute2: install it."
    probe = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"ip netns does not work: {probe.stderr.strip()}"


def run(*words: str) -> None:
    """Run a command of iproute2; what it says comes with the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Machine:
    """A namespace with one address."""

    namespace: str
    address: str

    def words(self, *command: str) -> list[str]:
        """Return the command line that runs a command in there."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def limit(self, bits_per_second: float) -> None:
        """Let it send no faster; a token bucket of 2 ms, or the least the kernel's clock allows."""
        burst = max(20_000, int(bits_per_second / 8 * 0.002))
        rate = f"{int(bits_per_second)}bit"
        words = ("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate)
        run(*self.words(*words, "burst", str(burst), "latency", "200ms"))


def machines(count: int, tag: str) -> tuple[Machine, list[Machine]]:
    """Name a hub and so many machines."""
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
        for machine in (*others, hub):
            with contextlib.suppress(RuntimeError):
                run("ip", "netns", "delete", machine.namespace)
