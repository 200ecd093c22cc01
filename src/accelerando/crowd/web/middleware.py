"""Middleware: security headers on responses and limits on the size of requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("accelerando.crowd")

__all__ = ["PAGE_POLICY", "BodyLimit", "SafeHeaders", "page_policy"]

_RULES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "media-src": "'self' blob:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}


def page_policy(hosts: list[str] | None = None) -> str:
    """Return the content security policy of a page; `hosts` are allowed sources of media."""
    rules = dict(_RULES)
    if hosts:
        for rule in ("img-src", "media-src"):
            rules[rule] += " " + " ".join(hosts)
    return "; ".join(f"{name} {value}" for name, value in rules.items())


PAGE_POLICY = page_policy()

_HEADERS = {
    b"content-security-policy": PAGE_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
    b"cache-control": b"no-store",
}


class SafeHeaders:
    """Add security headers that a response does not set itself; leave out hostile cookies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if any(name == b"cookie" and b"\\" in value for name, value in scope["headers"]):
            scope = {**scope, "headers": _without_backslashes(scope["headers"])}
        secure = scope.get("scheme") == "https"
        started = False

        async def send_safe(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message.get("headers", ()))
                there = {name.lower() for name, _ in headers}
                headers += [pair for pair in _HEADERS.items() if pair[0] not in there]
                if secure:
                    headers.append((b"strict-transport-security", b"max-age=31536000"))
                message["headers"] = headers
            await send(message)

        try:
            await self.app(scope, receive, send_safe)
        except Exception:
            if started:
                raise
            # Starlette's own page for errors would lack the headers.
            log.exception(
                "A request to %r failed.", scope["path"]
            )  # %r: a path may have line breaks
            await _respond(send_safe, 500, "internal", "Something went wrong on the server.")


def _without_backslashes(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers without cookies that have a backslash.

    None of ours has one. FastAPI parses the cookies of every request, and Python before 3.11.10
    takes seconds to undo 60 kB of backslashes; nobody else is served then.
    """
    kept = []
    for name, value in headers:
        if name == b"cookie":
            value = b";".join(pair for pair in value.split(b";") if b"\\" not in pair)
        kept.append((name, value))
    return kept


class BodyLimit:
    """Refuse bodies that are too large, by their header or while they arrive.

    Parameters
    ----------
    app : ASGI app
    most : int
        Maximum number of bytes of most requests.
    uploads : int
        Maximum number of bytes of requests with files by experimenters.
    may_upload : coroutine function
        Returns True if an experimenter sent the request with this scope. It is needed here because
        bodies are read before a route runs.
    seconds : float, default=30
        Time for a body to arrive; requests with files have twenty times as long.
    """

    def __init__(
        self,
        app: ASGIApp,
        most: int,
        uploads: int,
        may_upload: Callable[[Scope], Awaitable[bool]],
        seconds: float = 30.0,
    ) -> None:
        self.app, self.most, self.uploads, self.may_upload = app, most, uploads, may_upload
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        takes_files = path in ("/api/v1/experiments", "/api/v1/restore")
        most = self.uploads if takes_files and await self.may_upload(scope) else self.most
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 15 or int(declared) > most:
            await _refuse(send, most)
            return
        seen = 0
        slow = refused = False
        seconds = self.seconds * (20 if most > self.most else 1)
        until: float | None = asyncio.get_running_loop().time() + seconds

        async def count() -> Message:
            nonlocal seen, slow, until
            if until is None:  # the body is complete; the app waits for a disconnect
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                slow = True
                raise _NotAcceptedError from None
            if not message.get("more_body"):
                until = None
            seen += len(message.get("body", b""))
            if seen > most:
                raise _NotAcceptedError
            return message

        async def refuse() -> None:
            nonlocal refused
            if refused:
                return
            refused = True
            if slow:
                sentence = f"The request did not arrive within {seconds:g} seconds."
                await _respond(send, 408, "too_slow", sentence)
            else:
                await _refuse(send, most)

        async def say(message: Message) -> None:
            if seen <= most and not slow:
                await send(message)
            else:  # replace the response of the route to a truncated body
                await refuse()

        try:
            await self.app(scope, count, say)
        except _NotAcceptedError:
            await refuse()


class _NotAcceptedError(Exception):
    pass


async def _refuse(send: Send, most: int) -> None:
    await _respond(send, 413, "too_large", f"The request is larger than {most:,} bytes.")


async def _respond(send: Send, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
