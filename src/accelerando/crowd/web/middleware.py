"""Middleware: security headers on responses and limits on the size of requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Add security headers that a response does not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        secure = scope.get("scheme") == "https"

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name.lower() for name, _ in headers}
                headers += [pair for pair in _HEADERS.items() if pair[0] not in there]
                if secure:
                    headers.append((b"strict-transport-security", b"max-age=31536000"))
                message["headers"] = headers
            await send(message)

        await self.app(scope, receive, send_safe)


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
    """

    def __init__(
        self,
        app: ASGIApp,
        most: int,
        uploads: int,
        may_upload: Callable[[Scope], Awaitable[bool]],
    ) -> None:
        self.app, self.most, self.uploads, self.may_upload = app, most, uploads, may_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        takes_files = path in ("/api/v1/experiments", "/api/v1/restore")
        most = self.uploads if takes_files and await self.may_upload(scope) else self.most
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > most:
            await _refuse(send, most)
            return
        seen = 0
        refused = False

        async def count() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise _TooLargeError
            return message

        async def say(message: Message) -> None:
            nonlocal refused
            if seen <= most:
                await send(message)
            elif not refused:
                # Replace the response of the route to a truncated body.
                refused = True
                await _refuse(send, most)

        try:
            await self.app(scope, count, say)
        except _TooLargeError:
            if not refused:
                await _refuse(send, most)


class _TooLargeError(Exception):
    pass


async def _refuse(send: Send, most: int) -> None:
    what: dict[str, Any] = {
        "error": {"code": "too_large", "message": f"The request is larger than {most:,} bytes."}
    }
    body = json.dumps(what).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
