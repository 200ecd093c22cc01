"""HTTP connections with limits that uvicorn's fast parser lacks: the size of a head, and its time.

A header of some megabytes would stop a web process for minutes, because the parser joins its pieces
again and again. A connection that never completes a request would stay open for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LimitedProtocol"]

MOST_BYTES = 64 * 1024
SECONDS = 30.0


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too large or does not arrive.

    Bytes count that are part of no body: request line, headers, sizes of chunks and trailers.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unused = 0  # bytes since something was complete
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived in pieces, so that no piece is large before it is counted."""
        for start in range(0, len(data), MOST_BYTES):
            if self.transport.is_closing():
                return
            piece = data[start : start + MOST_BYTES]
            self._unused += len(piece)
            super().data_received(piece)
            if self._unused > MOST_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._unused = 0
        self._wait_no_more()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused = 0
        super().on_message_complete()

    def _wait(self) -> None:
        self._wait_no_more()
        self._waiting = self.loop.call_later(SECONDS, self._refuse, b"408 Request Timeout")

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, status: bytes) -> None:
        if not self.transport.is_closing():
            head = b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write(head)
            self.transport.close()
