"""Large byte strings go from a rank to the driver without passing through the mailbox's store.

The driver of a large model listens on a port of its machine. The mailbox carries the address. A
rank shows a secret of this run and sends its large byte strings there; if it cannot reach the
driver, it puts them into the store. In both cases they have arrived before the rank reports them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from accelerando._cluster.address import listen

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
