"""Seals on what passes through the mailbox's store, which anybody on the network can write to.

The secret of a run travels with its Dask tasks. Every message carries a keyed hash of the queue's
name, of who sent it and of a number that only grows; without the secret nobody can make one, and
nobody can repeat one. What has no valid seal is dropped, logged, and never looked into.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import secrets

from accelerando.exceptions import ClusterError

log = logging.getLogger("accelerando")

_TAG, _SENDER, _NUMBER = 32, 8, 8
_HEAD = _TAG + _SENDER + _NUMBER
_LOGGED = 5  # strangers must not fill the log


def new_secret() -> str:
    """Return a secret for one run."""
    return secrets.token_hex(16)


class Seal:
    """Make and check seals, as one sender and one receiver.

    Parameters
    ----------
    secret : str
        Of the run.

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
        return self._tag(b"derive", purpose.encode()).hex()[:32]

    def _tag(self, *parts: bytes) -> bytes:
        made = hashlib.blake2b(key=self._key, digest_size=_TAG)
        for part in parts:
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.digest()

    def close(self, name: str, content: bytes) -> bytes:
        """Return a message with its seal."""
        head = self._sender + next(self._numbers).to_bytes(_NUMBER, "big")
        return self._tag(name.encode(), head, content) + head + content

    def open(self, name: str, sealed: bytes, *, once: bool = True) -> bytes | None:
        """Return the content of a message; None if it is a stranger's, or came before.

        Parameters
        ----------
        name : str
            The queue or key that it was read from.
        sealed : bytes
            What was read.
        once : bool
            Whether the messages of a sender have to arrive in their order, each once.
        """
        tag, head, content = sealed[:_TAG], sealed[_TAG:_HEAD], sealed[_HEAD:]
        if len(head) == _SENDER + _NUMBER and hmac.compare_digest(
            tag, self._tag(name.encode(), head, content)
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

    # -- blobs: a sealed head, and pieces ----------------------------------------------------------

    def head_of(self, blob: str, pieces: int, content: bytes) -> bytes:
        """Return what is stored under the name of a blob: how many pieces, and their hash."""
        return self.close(blob, b"%d " % pieces + self._tag(blob.encode(), content))

    def read_head(self, blob: str, sealed: bytes) -> tuple[list[str], bytes]:
        """Return the keys of the pieces of a blob, and their hash."""
        opened = self.open(blob, sealed, once=False)
        if opened is None:
            raise changed(blob)
        pieces, _, tag = opened.partition(b" ")
        return [f"{blob}/{number}" for number in range(int(pieces))], tag

    def check_blob(self, blob: str, content: bytes, tag: bytes) -> bytes:
        """Return the content of a blob if it is what was put."""
        if not hmac.compare_digest(tag, self._tag(blob.encode(), content)):
            raise changed(blob)
        return content


def changed(blob: str) -> ClusterError:
    """Return the error about a byte string that somebody else has written."""
    return ClusterError(
        f"The byte string {blob!r} in the mailbox of this fit is not what a process of the fit has "
        "put there, so it was not read. Somebody else can write to the mailbox: keep the ports of "
        "the cluster closed to others, then continue from the checkpoint."
    )
