"""Find out which members of a process group cannot reach each other.

PyTorch's gloo waits for minutes and does not say which connection fails. So members of a group that
takes long to be formed try it themselves, on ports that are chosen as gloo's are, and after a group
that could not be formed, the members of the next one try first.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from accelerando._cluster.address import listen

_KNOCK_SECONDS = 5.0  # for a connection; in a network it takes milliseconds
_OPEN_SECONDS = 60.0  # members knock at about the same time


def knock(
    store: Any,
    rank: int,
    size: int,
    host: str,
    ports: tuple[int, int] | None = None,
    seconds: float = _KNOCK_SECONDS,
    *,
    patient: bool = True,
) -> None:
    """Connect to all other members, and let them connect to this one.

    Parameters
    ----------
    store : torch.distributed.Store
        Where members exchange their addresses.
    rank, size : int
        This member, and the number of members.
    host : str
        The address of this member.
    ports : (int, int) or None
        The first and the last port that may be taken.
    seconds : float
        Time for a connection.
    patient : bool
        Whether to wait for members that have no address yet; otherwise they are left out.

    Raises
    ------
    ConnectionError
        With both addresses, the port, and what the system says.
    """
    server = listen(host, ports)
    # Connections wait in the backlog; nobody has to accept them.
    timer = threading.Timer(_OPEN_SECONDS, server.close)
    timer.daemon = True
    timer.start()
    store.set(f"knock/{rank}", f"{host} {server.getsockname()[1]}")
    for other in range(size):
        if other == rank or not (patient or store.check([f"knock/{other}"])):
            continue
        there, port = store.get(f"knock/{other}").decode().rsplit(" ", 1)
        try:
            socket.create_connection((there, int(port)), timeout=seconds).close()
        except OSError as error:
            raise ConnectionError(
                f"{host} cannot connect to {there}, for example on port {port} ({error})"
            ) from error
