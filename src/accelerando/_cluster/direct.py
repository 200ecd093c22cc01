"""Large byte strings go from a rank to the driver without passing through the mailbox's store.

The driver of a large model listens on a port of its machine. The mailbox carries the address. A
rank shows a secret of this run and sends its large byte strings there; if it cannot reach the
driver, it puts them into the store. In both cases they have arrived before the rank reports them.
In the other direction Dask carries the data; a worker that hangs is noticed by its heartbeats.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from accelerando._dask import workers_of

if TYPE_CHECKING:
    from accelerando._cluster.mailbox import Mailbox

log = logging.getLogger("accelerando")

LARGE = 4 << 20
KEY = "direct"
_CONNECT_SECONDS = 5.0
_SECONDS = 60.0  # in which nothing arrives
_PIECE = 1 << 20
_SECRET = 32
_DONE = b"done"
_BEAT_SECONDS = 1.0  # between two looks at heartbeats, which come once or twice a second
SILENT_SECONDS = 10.0  # without a heartbeat: the worker hangs


def show_address(host: str, port: int) -> str:
    """Return a host and a port as one text; an IPv6 address needs brackets.

    Examples
    --------
    >>> show_address("10.0.0.1", 8786), show_address("fd77::1", 8786)
    ('10.0.0.1:8786', '[fd77::1]:8786')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


@contextmanager
def receive_large(mailbox: Mailbox, host: str) -> Iterator[None]:
    """Receive large byte strings of the ranks inside the block, as the driver.

    Parameters
    ----------
    mailbox : Mailbox
        The driver's; its ``arrived`` holds what was received.
    host : str
        The address of this machine on the way to the cluster.
    """
    listener = listen(host, mailbox.address.ports)
    secret = mailbox.seal.derive(KEY)
    place = json.dumps({"host": host, "port": listener.getsockname()[1]}).encode()
    thread = threading.Thread(
        target=_serve,
        args=(listener, secret.encode(), mailbox.arrived),
        name="accelerando-direct",
        daemon=True,
    )
    thread.start()
    mailbox.store.set(KEY, cast(str, mailbox.seal.close(KEY, place)))  # the stubs know only text
    mailbox.is_direct = False  # states for ranks take the store
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # wakes the thread
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_CONNECT_SECONDS)


def _serve(listener: socket.socket, secret: bytes, arrived: dict[str, bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed
            return
        # In a thread each: with averaging, all ranks send at once, and none waits for a silent one.
        threading.Thread(
            target=_receive_one, args=(connection, secret, arrived), daemon=True
        ).start()


def _receive_one(connection: socket.socket, secret: bytes, arrived: dict[str, bytes]) -> None:
    with connection, contextlib.suppress(OSError, ValueError, KeyError):  # the rank notices
        connection.settimeout(_SECONDS)
        if not secrets.compare_digest(bytes(_read(connection, _SECRET)), secret):
            return
        length = int.from_bytes(_read(connection, 4), "big")
        head = json.loads(bytes(_read(connection, length)))
        content = _read(connection, head["bytes"])
        arrived[head["blob"]] = bytes(content)
        connection.sendall(_DONE)


def send_large(mailbox: Mailbox, blob: str, content: bytes) -> bool:
    """Send a byte string to the driver; return False if it listens nowhere or is out of reach."""
    if not mailbox.is_direct or not mailbox.store.check([KEY]):
        return False
    sealed = mailbox.seal.open(KEY, mailbox.store.get(KEY), once=False)
    if sealed is None:  # a stranger's address must not get the secret
        return False
    place = json.loads(sealed)
    head = json.dumps({"blob": blob, "bytes": len(content)}).encode()
    try:
        address = (place["host"], place["port"])
        with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
            connection.settimeout(_SECONDS)
            secret = mailbox.seal.derive(KEY).encode()
            connection.sendall(secret + len(head).to_bytes(4, "big") + head)
            connection.sendall(content)
            return bytes(_read(connection, len(_DONE))) == _DONE
    except OSError as error:
        mailbox.is_direct = False
        log.info(
            "The driver cannot be reached on %s:%s (%s). Large states pass through the scheduler.",
            place["host"], place["port"], error,
        )  # fmt: skip
        return False


def _read(connection: socket.socket, count: int) -> bytearray:
    """Return exactly `count` bytes."""
    content = bytearray(count)
    view, done = memoryview(content), 0
    while done < count:
        got = connection.recv_into(view[done : done + _PIECE])
        if not got:
            raise ConnectionError("The connection was closed in the middle of a transfer.")
        done += got
    return content


# -- through Dask ----------------------------------------------------------------------------------


def begin(function: Any, *arguments: Any, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """Call a function in another thread; return it, and a list that gets the result or error."""
    ended: list[Any] = []

    def call() -> None:
        try:
            ended.append(function(*arguments, **options))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=call, name="accelerando-call", daemon=True)
    thread.start()
    return thread, ended


def send_to(client: Any, content: Any, worker: str) -> Any:
    """Scatter an object to one worker, for which Dask waits; raise ``TimeoutError`` if it hangs."""
    thread, ended = begin(client.scatter, content, workers=[worker], hash=False)
    silent, before = 0.0, None
    thread.join(_BEAT_SECONDS)
    while thread.is_alive():
        seen = workers_of(client).get(worker, {}).get("last_seen")
        silent, before = silent + _BEAT_SECONDS if seen == before else 0.0, seen
        if silent >= SILENT_SECONDS:
            raise TimeoutError(f"Worker {worker} hangs.")
        thread.join(_BEAT_SECONDS)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]
