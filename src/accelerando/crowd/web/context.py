"""The context of requests: store, group commit and settings of the server."""

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
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.web.group_commit import GroupCommit

__all__ = ["Context", "Ctx", "context_of"]

Result = TypeVar("Result")


@dataclass
class Context:
    """The store, its writer, and settings of this server.

    Attributes
    ----------
    store : Store
    writer : GroupCommit
    secret : bytes
        Key that signs participants' tokens.
    limits : Limits
        Limits of uploads.
    cache : dict
        Results that requests share.
    damaged : bool
        Whether the database was found to be damaged: nothing is written to it any more.
    """

    store: Store
    writer: GroupCommit
    secret: bytes
    limits: Limits = field(default_factory=Limits)
    _items: dict[tuple[int, float], list[Item]] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)
    damaged: bool = False

    async def write(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a transaction of the writer."""
        if self.damaged:
            raise ApiError("unavailable", "The server cannot store anything at the moment.", 503)
        return await self.writer.run(function, *arguments)

    async def read(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a read transaction in a thread, so that it delays no other request."""

        def work() -> Result:
            with self.store.read() as connection:
                return function(connection, *arguments)

        return await anyio.to_thread.run_sync(work)

    def items(self, connection: Connection, snapshot: Snapshot) -> list[Item]:
        """Return the items of an experiment, cached."""
        key = snapshot.frame.id, snapshot.frame.created
        if key not in self._items:
            if len(self._items) > 50:
                self._items.clear()
            self._items[key] = stored.items_of(connection, snapshot.frame.id)
        return self._items[key]

    @staticmethod
    def clock() -> float:
        """Return the Unix time."""
        return time.time()


def context_of(request: Request) -> Context:
    """Return the context of the application of this request."""
    context: Context = request.app.state.context
    return context


async def _depend(request: Request) -> Context:
    # A coroutine, because FastAPI runs plain functions in a thread.
    return context_of(request)


Ctx = Annotated[Context, Depends(_depend)]
