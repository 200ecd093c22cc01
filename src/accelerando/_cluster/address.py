"""Addresses on which the processes of a run listen, on ports that the user may restrict."""

from __future__ import annotations

import errno
import secrets
import socket
from typing import NamedTuple


class Address(NamedTuple):
    """Address of the store, secret of the run, and ports that the run may use.

    Examples
    --------
    >>> Address("10.0.0.1", 8786).where, Address("fd77::1", 8786).where
    ('10.0.0.1:8786', '[fd77::1]:8786')
    """

    host: str
    port: int
    secret: str = ""
    ports: tuple[int, int] | None = None

    @property
    def where(self) -> str:
        """The host and the port as one text; an IPv6 address needs brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach it."""
        return self.host in ("::1", "localhost") or self.host.startswith("127.")


def listen(host: str, ports: tuple[int, int] | None = None, backlog: int = 128) -> socket.socket:
    """Listen on an address of this machine, on a free port.

    Parameters
    ----------
    host : str
        The address.
    ports : (int, int) or None
        The first and the last port that may be taken; None for any that the system chooses.
    backlog : int
        Connections that wait to be accepted.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if ports is None:
        return socket.create_server((host, 0), family=family, backlog=backlog)
    numbers = list(range(ports[0], ports[1] + 1))
    secrets.SystemRandom().shuffle(numbers)  # the seeds of users are left alone
    for port in numbers:
        try:
            return socket.create_server((host, port), family=family, backlog=backlog)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise OSError(
        errno.EADDRINUSE, f"No port of {ports[0]}:{ports[1]} (accelerando.ports) is free on {host}"
    )
