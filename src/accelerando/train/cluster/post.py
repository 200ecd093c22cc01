"""Where the board hangs: on the Dask scheduler, which outlives every worker and knows of deaths.

A plugin on the scheduler serves the board, drops a note about every worker that comes or goes, and
takes the board down when the driver's client leaves, however it leaves. Where the scheduler cannot
do that (it has no torch, or its ports are closed to the driver) the driver serves the board itself
and asks the scheduler for its workers now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import SchedulerPlugin
from distributed.comm import get_address_host
from distributed.utils import get_ip

from accelerando._topic import drop_late
from accelerando.train.cluster.board import Address, Board, open_store


class Post(SchedulerPlugin):  # type: ignore[misc]
    """Serve the board of one run."""

    def __init__(self, run: str, client: str) -> None:
        self.name = f"accelerando-{run}"
        self.client = client
        self.board: Board | None = None

    async def start(self, scheduler: Any) -> None:
        """Open the store; importing torch may take seconds, so not on the event loop."""
        host = get_address_host(scheduler.address)
        store = await asyncio.to_thread(open_store, host)
        self.board = Board(Address(host, store.port), store)

    def _drop(self, note: dict[str, Any]) -> None:
        if self.board is not None:
            with contextlib.suppress(RuntimeError):
                self.board.drop(note)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Tell the driver of a newcomer."""
        self._drop({"kind": "came", "worker": worker})

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Tell the driver of a worker that died, was retired, or was restarted by its Nanny."""
        self._drop({"kind": "gone", "worker": worker})

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Take the board down when the driver is gone: ranks that miss it stop."""
        if client == self.client:
            self.board = None
            scheduler.plugins.pop(self.name, None)
            drop_late(scheduler, self.name)

    async def close(self) -> None:
        """Take the board down."""
        self.board = None


def _address(run: str, dask_scheduler: Any = None) -> Address | None:
    post = dask_scheduler.plugins.get(f"accelerando-{run}")
    return None if post is None or post.board is None else post.board.address


@contextmanager
def posted(client: Any, run: str) -> Iterator[Board]:
    """Open a board for one run, and leave nothing behind."""
    post = Post(run, client.id)
    try:
        client.register_plugin(post)
        address = client.run_on_scheduler(_address, run)
        board = None if address is None else Board(Address(*address))
    except Exception:  # whatever keeps the scheduler from it: no torch, no port, no permission
        board = None
    if board is None:
        host = get_ip(get_address_host(client.scheduler.address))
        if get_address_host(client.scheduler.address) in ("127.0.0.1", "::1", "localhost"):
            host = get_address_host(client.scheduler.address)
        store = open_store(host)
        board = Board(Address(host, store.port), store)
    try:
        yield board
    finally:
        with contextlib.suppress(Exception):
            client.unregister_scheduler_plugin(post.name)
