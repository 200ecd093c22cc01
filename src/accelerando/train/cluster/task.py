"""The long Dask task in which a rank lives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import torch
from distributed import get_worker, secede
from distributed.comm import get_address_host

from accelerando.train.cluster.board import Address, Board
from accelerando.train.cluster.calm import calm
from accelerando.train.cluster.order import Order
from accelerando.train.cluster.rank import BoardGone, Rank
from accelerando.train.memory import steady_memory


def serve(sealed: bytes, data: Any, address: tuple[str, int], place: str) -> None:
    """Be a rank until told to stop, or until the board is gone because the driver is.

    The order comes sealed, as the bytes of a pickle made by the driver: every rank opens a copy of
    its own, which it may change.
    """
    worker = get_worker()
    secede()  # other tasks, and ranks of other fits, go on beside this one
    ended: list[BaseException | None] = []

    def live() -> None:
        try:
            ended.append(_live(cloudpickle.loads(sealed), data, Address(*address), place, worker))
        except BaseException as error:
            ended.append(error)

    # In a thread that Dask does not know of: its profiler would stop a task's thread a hundred
    # times a second to look at the stack, which costs the other ranks as much as this one.
    with steady_memory(one_arena=True):
        thread = threading.Thread(target=live, name=place, daemon=True)
        thread.start()
        thread.join()
    if ended[0] is not None:
        raise ended[0]


def _live(
    order: Order, data: Any, address: Address, place: str, worker: Any
) -> BaseException | None:
    host = get_address_host(worker.address)
    with _threads(worker.state.nthreads), calm(worker):
        rank = Rank(order, data, Board(address), place, host, worker)
        rank.warm_up()
        with contextlib.suppress(BoardGone):
            rank.say("ready")
            rank.obey()
        rank.leave()
    return rank.error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with as many threads as Dask gave the worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)
