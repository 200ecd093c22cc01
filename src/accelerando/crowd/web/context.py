"""What every request can reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Depends, Request
from sqlalchemy import Connection

from accelerando.crowd.experiment import Item, Limits
from accelerando.crowd.store import Store
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.experiments import Now
from accelerando.crowd.web.group_commit import Writer

__all__ = ["Context", "Ctx", "context_of"]

Result = TypeVar("Result")


@dataclass
class Context:
    """The store, its writer, and settings of this server.

    Attributes
    ----------
    store : Store
    writer : Writer
    secret : bytes
        Signs participants' tokens.
    limits : Limits
        Of uploads.
    open_pages : bool
        Whether templates are installed; without them there is the API only.
    """

    store: Store
    writer: Writer
    secret: bytes
    limits: Limits = field(default_factory=Limits)
    _items: dict[tuple[int, float], list[Item]] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)

    async def write(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """In a transaction of the writer."""
        return await self.writer.run(function, *arguments)

    async def read(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """In a thread of its own, with a view of its own: however long it takes, nobody waits."""

        def work() -> Result:
            with self.store.read() as connection:
                return function(connection, *arguments)

        return await anyio.to_thread.run_sync(work)

    def items(self, connection: Connection, now: Now) -> list[Item]:
        """The items of an experiment, remembered."""
        key = now.frame.id, now.frame.created
        if key not in self._items:
            if len(self._items) > 50:
                self._items.clear()
            self._items[key] = stored.items_of(connection, now.frame.id)
        return self._items[key]

    @staticmethod
    def clock() -> float:
        """Seconds since 1970."""
        return time.time()


def context_of(request: Request) -> Context:
    """The context of the app that got this request."""
    context: Context = request.app.state.context
    return context


async def _depend(request: Request) -> Context:
    # A coroutine, though it awaits nothing: anything else FastAPI would run in a thread.
    return context_of(request)


Ctx = Annotated[Context, Depends(_depend)]
