"""The board on which driver and ranks leave each other messages.

It is a ``TCPStore`` that belongs to no rank, so that no rank's death takes it away. The driver
pins commands to a rank's place on it, ranks drop notes into one box that the driver empties.
Messages are JSON; states of models are byte strings cut into pieces. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]

# One message of a TCPStore may have 8 MiB.
_PIECE = 4 << 20
_TIMEOUT = timedelta(seconds=60)
_BOX = "notes"


class Address(NamedTuple):
    """Where a board can be reached."""

    host: str
    port: int


def open_store(host: str) -> TCPStore:
    """Serve a store on the given address of this machine only, on a port that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(4096)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=_TIMEOUT,
    )


class Board:
    """One end of the board. Errors of the store mean that the run is over: ``RuntimeError``."""

    def __init__(self, address: Address, store: TCPStore | None = None) -> None:
        self.address = address
        self.store = store if store is not None else self.connect()

    def connect(self, timeout: timedelta = _TIMEOUT) -> TCPStore:
        """Return a connection of its own; one connection serves one thread at a time."""
        host, port = self.address
        # A TCPStore would knock at a closed door for a minute; the board of a run that is over is
        # closed, and one behind a firewall does not answer.
        socket.create_connection((host, port), timeout=10.0).close()
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)

    # -- notes, from anybody to the driver ----------------------------------------------------

    def drop(self, note: dict[str, Any]) -> None:
        """Put a note into the driver's box."""
        self.store.queue_push(_BOX, json.dumps(note))

    def listen(self) -> Notes:
        """Empty the box from now on."""
        return Notes(self)

    # -- commands, from the driver to one rank ------------------------------------------------

    def command(self, place: str, number: int, command: dict[str, Any]) -> None:
        """Pin a command to a place."""
        self.store.set(f"{place}/{number}", json.dumps(command))

    def commanded(self, place: str, number: int) -> dict[str, Any] | None:
        """Return the command with this number and take it off, or None if it is not there yet."""
        key = f"{place}/{number}"
        if not self.store.check([key]):
            return None
        command: dict[str, Any] = json.loads(self.store.get(key))
        self.store.delete_key(key)
        return command

    # -- signals, from the driver to whoever looks --------------------------------------------

    def raise_flag(self, name: str) -> None:
        """Let :meth:`flag` be true from now on."""
        self.store.set(name, "1")

    def flag(self, name: str) -> bool:
        """Tell whether the flag was raised."""
        return bool(self.store.check([name]))

    # -- states, in either direction ----------------------------------------------------------

    def put(self, name: str, content: bytes) -> None:
        """Leave a byte string of any length."""
        pieces = range(0, max(1, len(content)), _PIECE)
        for number, start in enumerate(pieces):
            piece: Any = content[start : start + _PIECE]  # the stubs know of text only
            self.store.set(f"{name}/{number}", piece)
        self.store.set(name, str(len(pieces)))

    def take(self, name: str) -> bytes:
        """Return a byte string and remove it."""
        count = int(self.store.get(name))
        keys = [f"{name}/{number}" for number in range(count)]
        content = b"".join(self.store.get(key) for key in keys)
        for key in (name, *keys):
            self.store.delete_key(key)
        return content


class Notes:
    """The box of notes as a queue in this process.

    A thread waits for the next note inside the store's own code: looking again and again would
    take time from ranks that share the machine.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._arrived: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._store = board.connect(timedelta(days=365))
        self._thread = threading.Thread(target=self._run, name="accelerando-notes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                note = json.loads(self._store.queue_pop(_BOX))
            except RuntimeError:
                return  # the board is gone
            if note["kind"] == "closed":
                return
            self._arrived.put(note)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """Return the oldest note; None if none comes within so many seconds."""
        try:
            return self._arrived.get(timeout=seconds) if seconds > 0 else self._arrived.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(RuntimeError):
            self._board.drop({"kind": "closed"})
            self._thread.join(5.0)
