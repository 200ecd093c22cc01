"""The application of a process that cannot open the database: it refuses, and says so at once."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from accelerando.crowd.web.middleware import SafeHeaders

__all__ = ["create_ill_app"]

_SENTENCE = "The server cannot store anything at the moment; please try again soon."


def create_ill_app(trouble: str) -> ASGIApp:
    """Return an ASGI application that answers 503, and names the trouble on ``/health``.

    Without it, requests would wait for a process that never begins. Pages of participants keep
    their answers and try again.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for said in ("lifespan.startup", "lifespan.shutdown"):
                await receive()
                await send({"type": f"{said}.complete"})
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        status = 503
        body: dict[str, Any] = {"error": {"code": "unavailable", "message": _SENTENCE}}
        if path == "/health/live":
            status, body = 200, {"ok": True}
        elif path in ("/health", "/health/ready"):
            body = {"ok": False, "database": trouble, "worker": "unknown"}
        data = json.dumps(body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
            (b"retry-after", b"2"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    return SafeHeaders(app)
