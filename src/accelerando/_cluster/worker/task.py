"""The long-running Dask task in which a rank lives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import torch
from distributed import get_worker, secede

from accelerando._cluster.driver.placement import Placed
from accelerando._cluster.job import RankSpec
from accelerando._cluster.mailbox import Address, Mailbox, MailboxGone
from accelerando._cluster.messages import RankId
from accelerando._cluster.worker.rank import Rank
from accelerando._dask import host_of, quiet_worker
from accelerando._engine.runtime.process import keep_memory


def serve(sealed: bytes, data: Placed, address: tuple[str, int], rank: RankId) -> None:
    """Be a rank until Stop arrives, or until the mailbox is gone because the driver is.

    Parameters
    ----------
    sealed : bytes
        The pickled :class:`RankSpec`. Dask may share one object among the tasks of a process, and
        a rank changes its own.
    data : Placed
        The training data.
    address : (str, int)
        Of the mailbox.
    rank : str
        The name of the rank.
    """
    worker = get_worker()
    secede()  # other tasks, and ranks of other fits, run at the same time
    ended: list[BaseException | None] = []

    def live() -> None:
        try:
            ended.append(_live(cloudpickle.loads(sealed), data, Address(*address), rank, worker))
        except BaseException as error:
            ended.append(error)

    # In a thread that Dask does not know: its profiler would stop a task's thread a hundred times
    # a second to look at the stack, which costs the other ranks as much as this one.
    with keep_memory(one_arena=True):
        thread = threading.Thread(target=live, name=rank, daemon=True)
        thread.start()
        thread.join()
    if ended[0] is not None:
        raise ended[0]


def _live(
    spec: RankSpec, data: Placed, address: Address, rank_id: RankId, worker: Any
) -> BaseException | None:
    with _threads(worker.state.nthreads), quiet_worker(worker):

        def log_event(facts: dict[str, Any]) -> None:
            worker.log_event(spec.topic, facts)

        mailbox = Mailbox(address)
        rank = Rank(spec, data, mailbox, rank_id, host_of(worker.address), log_event)
        rank.warm_up()
        with contextlib.suppress(MailboxGone):
            rank.run()
        rank.leave_group()
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
