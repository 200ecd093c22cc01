"""The mailbox: the channel between the driver, its ranks and the scheduler.

It is a ``TCPStore`` that belongs to no rank, so that no rank's death closes it. Commands have one
queue per rank, events have one queue to the driver, and states are byte strings in pieces. All who
receive block inside the store: nobody polls it. :mod:`accelerando._cluster.plugins` decides which
process serves it. Large states do not pass through it (:mod:`~accelerando._cluster.direct`).

Messages are JSON. Unknown kinds and fields are refused: the processes of the cluster run different
versions of accelerando. Anybody on the network can write to the store, so every message carries a
*seal*: a keyed hash of the queue's name, of its sender and of a number that only grows. The secret
of a run travels with its Dask tasks; without it nobody can make a seal, and nobody can repeat one.
What has no valid seal is dropped, logged, and never looked into.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import queue
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args

from accelerando._cluster import direct
from accelerando._cluster.address import Address
from accelerando._cluster.messages import (
    Abandon,
    Command,
    Message,
    Pause,
    RankEvent,
    RankId,
    Stop,
    WorkerEvent,
)
from accelerando.exceptions import ClusterError

if TYPE_CHECKING:  # the scheduler imports this module on its event loop, and torch takes seconds
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

log = logging.getLogger("accelerando")

T = TypeVar("T")
_PIECE = 4 << 20  # one message of a TCPStore may have 8 MiB
_TIMEOUT = timedelta(seconds=60)
_FOREVER = timedelta(days=365)
_PROBE_SECONDS = 10.0
_JOIN_SECONDS = 5.0
_EVENTS = "events"
_CLOSED = b"closed"
_TAG, _SENDER, _NUMBER = 32, 8, 8  # bytes of a seal
_HEAD = _TAG + _SENDER + _NUMBER
_LOGGED = 5  # strangers must not fill the log

# -- the wire format ------------------------------------------------------------------------------

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
# JSON has no tuples.
_TUPLES = {
    kind: [f.name for f in fields(cls) if str(f.type).startswith("tuple")]
    for kind, cls in KINDS.items()
}
_VERSIONS = "Install the same version of accelerando in all processes of the cluster."


def encode(message: Message) -> str:
    """Return a message as JSON.

    Examples
    --------
    >>> from accelerando._cluster.messages import Abandon
    >>> encode(Abandon(generation=3))
    '{"kind": "Abandon", "generation": 3}'
    """
    kind = type(message).__name__
    if KINDS.get(kind) is not type(message):
        raise TypeError(f"{kind} is not sent between processes.")
    return json.dumps({"kind": kind, **vars(message)})


def decode(text: str | bytes) -> Message:
    """Return the message that :func:`encode` wrote, or raise a ValueError.

    Examples
    --------
    >>> decode('{"kind": "SendState", "blob": "state/0", "parts": ["REPLICAS"]}')
    SendState(blob='state/0', parts=('REPLICAS',))
    """
    content = json.loads(text)
    kind = content.pop("kind", None) if isinstance(content, dict) else None
    if kind not in KINDS:
        raise ValueError(
            f"A message has the unknown kind {kind!r}. Known kinds: {', '.join(KINDS)}. {_VERSIONS}"
        )
    for name in _TUPLES[kind]:
        if content.get(name) is not None:
            content[name] = tuple(content[name])
    try:
        message: Message = KINDS[kind](**content)
    except TypeError as error:  # an unknown field, or a missing one
        raise ValueError(f"A {kind} message does not fit: {error}. {_VERSIONS}") from error
    return message


# -- seals ----------------------------------------------------------------------------------------


def new_secret() -> str:
    """Return a secret for one run."""
    return secrets.token_hex(16)


class Seal:
    """Make and check seals with the secret of a run, as one sender and one receiver.

    Examples
    --------
    >>> one, other = Seal("of this run"), Seal("of this run")
    >>> sealed = one.close("events", b"hello")
    >>> other.open("events", sealed)
    b'hello'
    >>> other.open("events", sealed) is None  # again
    True
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(secret.encode()).digest()
        self._sender = secrets.token_bytes(_SENDER)
        self._numbers = itertools.count(1)
        self._newest: dict[tuple[str, bytes], int] = {}  # (queue, sender) -> last number
        self._dropped = 0

    def derive(self, purpose: str) -> str:
        """Return another secret of this run, 32 letters long."""
        return self.tag(b"derive", purpose.encode()).hex()[:32]

    def tag(self, *parts: bytes) -> bytes:
        """Return a keyed hash of all parts."""
        made = hashlib.blake2b(key=self._key, digest_size=_TAG)
        for part in parts:
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.digest()

    def close(self, name: str, content: bytes) -> bytes:
        """Return a message with its seal."""
        head = self._sender + next(self._numbers).to_bytes(_NUMBER, "big")
        return self.tag(name.encode(), head, content) + head + content

    def open(self, name: str, sealed: bytes, *, once: bool = True) -> bytes | None:
        """Return the content of a message; None if it is a stranger's.

        With `once`, messages of a sender have to arrive in their order, each once.
        """
        tag, head, content = sealed[:_TAG], sealed[_TAG:_HEAD], sealed[_HEAD:]
        if len(head) == _SENDER + _NUMBER and hmac.compare_digest(
            tag, self.tag(name.encode(), head, content)
        ):
            source, number = (name, head[:_SENDER]), int.from_bytes(head[_SENDER:], "big")
            if not once or number > self._newest.get(source, 0):
                self._newest[source] = max(number, self._newest.get(source, 0))
                return content
        self._dropped += 1
        if self._dropped <= _LOGGED:
            log.warning(
                "Something that no process of this fit has written was in its mailbox (%s, %d "
                "bytes). It was dropped. Somebody else can reach the port of the mailbox.",
                name, len(sealed),
            )  # fmt: skip
        return None


# -- the store ------------------------------------------------------------------------------------


class MailboxGone(ClusterError):  # noqa: N818  on a rank it is no error: the driver may be done
    """The store cannot be reached any more: the run is over."""


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        if isinstance(error, ClusterError):
            raise
        raise MailboxGone(f"The mailbox of this fit cannot be reached any more: {error}") from error


class Mailbox:
    """One end of the mailbox. A connection serves one thread at a time.

    Every method raises MailboxGone if the store is gone.

    Parameters
    ----------
    address, store : Address, TCPStore
        Of the store, and a connection to it; without one, it is made.
    """

    def __init__(self, address: Address, store: TCPStore | None = None) -> None:
        self.address = address
        self.arrived: dict[str, bytes] = {}  # large byte strings that did not take the store
        self.is_direct = True
        self.seal = Seal(address.secret)
        self.store = self.connect() if store is None else store

    def connect(self, timeout: timedelta = _TIMEOUT) -> TCPStore:
        """Return another connection to the store."""
        from accelerando._engine._torch import make_store

        host, port = self.address[:2]
        with _reachable():
            # A TCPStore retries a closed port for a minute, and a firewall does not answer at all.
            socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
            store: TCPStore = make_store(host, port, is_master=False, timeout=timeout)
            return store

    # -- messages ---------------------------------------------------------------------------------

    def send(self, rank: RankId, command: Command) -> None:
        """Send a command to a rank."""
        self._push(f"to/{rank}", encode(command).encode())

    def report(self, event: RankEvent | WorkerEvent) -> None:
        """Send an event to the driver."""
        self._push(_EVENTS, encode(event).encode())

    def events(self) -> Events:
        """Receive the events, as the driver."""
        return _Listener(self, _EVENTS)

    def inbox(self, rank: RankId) -> Inbox:
        """Receive the commands to a rank."""
        return Inbox(self, rank)

    def _push(self, name: str, text: bytes) -> None:
        with _reachable():  # the stubs know only text
            self.store.queue_push(name, cast(str, self.seal.close(name, text)))

    # -- blobs ------------------------------------------------------------------------------------

    def put(self, blob: str, content: bytes) -> None:
        """Store a byte string of any length; its head, which is sealed, comes last."""
        pieces = range(0, max(1, len(content)), _PIECE)
        with _reachable():
            if len(content) >= direct.LARGE and direct.send_large(self, blob, content):
                return
            for number, start in enumerate(pieces):
                piece = cast(str, content[start : start + _PIECE])
                self.store.set(f"{blob}/{number}", piece)
            head = b"%d " % len(pieces) + self.seal.tag(blob.encode(), content)
            self.store.set(blob, cast(str, self.seal.close(blob, head)))

    def take(self, blob: str) -> bytes:
        """Return a byte string and remove it."""
        if blob in self.arrived:
            return self.arrived.pop(blob)
        with _reachable():
            keys, tag = self._read_head(blob)
            content = b"".join(self.store.get(key) for key in keys)
            self._delete(blob, *keys)
        if not hmac.compare_digest(tag, self.seal.tag(blob.encode(), content)):
            raise _changed(blob)
        return content

    def drop(self, blob: str) -> None:
        """Remove a byte string, if it exists."""
        self.arrived.pop(blob, None)
        with _reachable():
            if self.store.check([blob]):
                self._delete(blob, *self._read_head(blob)[0])

    def _read_head(self, blob: str) -> tuple[list[str], bytes]:
        """Return the keys of the pieces of a byte string, and their hash."""
        head = self.seal.open(blob, self.store.get(blob), once=False)
        if head is None:
            raise _changed(blob)
        pieces, _, tag = head.partition(b" ")
        return [f"{blob}/{number}" for number in range(int(pieces))], tag

    def _delete(self, *keys: str) -> None:
        for key in keys:
            self.store.delete_key(key)


def _changed(blob: str) -> ClusterError:
    return ClusterError(
        f"The byte string {blob!r} in the mailbox of this fit is not what a process of the fit has "
        "put there, so it was not read. Somebody else can write to the mailbox: keep the ports of "
        "the cluster closed to others, then continue from the checkpoint."
    )


# -- queues ---------------------------------------------------------------------------------------


class _Listener(Generic[T]):
    """A daemon thread that blocks in one queue of the store, on its own connection."""

    def __init__(self, mailbox: Mailbox, name: str) -> None:
        self._mailbox, self._name = mailbox, name
        self._arrived: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()
        self._store = mailbox.connect(_FOREVER)
        self._thread = threading.Thread(
            target=self._listen, name=f"accelerando-{name}", daemon=True
        )
        self._thread.start()

    def _listen(self) -> None:
        try:
            while True:
                with _reachable():
                    sealed = self._store.queue_pop(self._name)
                text = self._mailbox.seal.open(self._name, sealed)
                if text is not None and (text == _CLOSED or not self._receive(decode(text))):
                    break
        except Exception as error:  # the store is gone, or the message is of another version
            self._arrived.put(error)
        del self._store

    def _receive(self, message: Message) -> bool:
        """Take a message; return False after the last one."""
        self._arrived.put(cast(T, message))
        return True

    def next(self, seconds: float | None = None) -> T | None:
        """Return the oldest message; None if none arrives within `seconds`.

        Raises the error that ended the thread: MailboxGone, or the ValueError of a message that
        this version does not know.
        """
        try:
            found = self._arrived.get(block=seconds != 0, timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            self._arrived.put(found)  # the next call fails, too
            raise found
        return found

    def close(self) -> None:
        """End the thread. It must end before the store closes: c10d prints C++ frames otherwise."""
        with contextlib.suppress(MailboxGone):
            if self._thread.is_alive():
                self._mailbox._push(self._name, _CLOSED)
                self._thread.join(_JOIN_SECONDS)


class Inbox(_Listener[Command]):
    """The commands to a rank as a queue in its process.

    Pause and Abandon are not in the queue: they concern the command that is being executed, and
    can be asked for at any time. Stop is in the queue and ends the thread.
    """

    def __init__(self, mailbox: Mailbox, rank: RankId) -> None:
        self._pause: Pause | None = None
        self._abandoned = -1
        self.stopping = False
        super().__init__(mailbox, f"to/{rank}")

    def pause(self, segment: int) -> Pause | None:
        """Return the Pause of a segment, if the driver has sent one."""
        pause = self._pause
        return pause if pause is not None and pause.segment == segment else None

    def abandoned(self, generation: int) -> bool:
        """Return True if the driver has given up this generation."""
        return self._abandoned >= generation

    def _receive(self, command: Message) -> bool:
        if isinstance(command, Pause):
            self._pause = command
        elif isinstance(command, Abandon):
            self._abandoned = max(self._abandoned, command.generation)
        else:
            self.stopping = isinstance(command, Stop)
            self._arrived.put(cast(Command, command))
        return not self.stopping


Events = _Listener[RankEvent | WorkerEvent]  # as a queue in the driver's process
