"""Limits on what one address may do, counted in memory; no address is stored."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import Connection
from starlette.requests import Request

from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store import participants
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web.context import Context

__all__ = ["Counter", "address_key", "limit_sessions"]

_MOST_KEYS = 20_000


class Counter:
    """Count events per key within a window of seconds.

    Parameters
    ----------
    most : int
        Events per key and window.
    seconds : float
        Length of the window.

    Examples
    --------
    >>> counter = Counter(most=2, seconds=60)
    >>> [counter.take("a", now=t) for t in (0, 1, 2, 61)]
    [True, True, False, True]
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, key: str, now: float | None = None) -> bool:
        """Count an event; return False if there were too many."""
        now = time.monotonic() if now is None else now  # wall clocks jump
        begin, count = self._counts.get(key, (now, 0))
        if now - begin >= self.seconds:
            begin, count = now, 0
        self._counts[key] = begin, count + 1
        self._counts.move_to_end(key)
        while len(self._counts) > _MOST_KEYS:
            self._counts.popitem(last=False)
        return count < self.most


def address_key(secret: bytes, request: Request) -> str:
    """Return a keyed hash of the caller's address; an IPv6 network of 64 bits is one caller."""
    address = request.client.host if request.client else ""
    if ":" in address:
        with suppress(ValueError):
            # Written in full: "2001:db8::1" and "2001:db8::2" are of one network.
            full = ipaddress.IPv6Address(address.split("%")[0])
            address = str(full.ipv4_mapped or ipaddress.IPv6Network((full, 64), strict=False))
    return hmac.new(secret, f"caller {address}".encode(), hashlib.sha256).hexdigest()[:32]


async def limit_sessions(
    context: Context,
    request: Request,
    name: str,
    shown: str | None,
    parameters: Mapping[str, str],
) -> None:
    """Count a session that may begin.

    The participant of a valid token (`shown`) continues and is not counted, unless the link has the
    id of somebody else: each id would begin a session.

    Raises
    ------
    ApiError
        This address has begun too many sessions (429).
    """
    if context.limits.sessions_per_address is None:
        return
    if shown is not None:

        def look(connection: Connection) -> bool:
            snapshot = stored.find(connection, name)
            known = participants.authenticate(connection, context.secret, snapshot, shown)
            return participants.continues(snapshot, context.secret, parameters, known)

        if await context.read(look):
            return
    counter: Counter = context.cache.setdefault(
        "sessions", Counter(context.limits.sessions_per_address, 600.0)
    )
    if not counter.take(address_key(context.secret, request)):
        raise ApiError(
            "too_many", "Too many sessions began at this address; try again in ten minutes.", 429
        )
