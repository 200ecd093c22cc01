"""Adapter for Dask: every private or undocumented name of Dask that accelerando depends on.

It finds the workers of a cluster, scales clusters, and makes the chores of a worker rare while a
rank trains on it. ``tests/test_dask.py`` has one test per name, so that a new version of Dask fails
with the name that it changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import versions as dask_versions
from distributed.comm import get_address_host
from distributed.utils import get_ip

from accelerando.exceptions import UnsupportedError

_LATE_SECONDS = 2.0  # events on their way when a topic is dropped would create it again

# -- workers --------------------------------------------------------------------------------------


def workers_of(client: Any) -> dict[str, Any]:
    """Return all workers by address, with what the scheduler knows about each.

    ``client.scheduler_info(n_workers=-1)`` asks for the same, but returns what the client noted
    last. Every other second the client notes an answer without workers. If that happens between
    the question and the return, the cluster seems to be empty.
    """
    if client.scheduler is not None:
        try:
            answer: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
        except OSError:  # the scheduler cannot be reached: use what was known last
            pass
        else:
            return dict(answer["workers"])
    return dict(client.scheduler_info(n_workers=-1).get("workers", {}))  # a closed one knows none


def host_of(address: str) -> str:
    """Return the machine of an address: '10.0.0.1' of 'tcp://10.0.0.1:8786'."""
    return str(get_address_host(address))


def host_towards(address: str) -> str:
    """Return the address of this machine under which the machine of `address` can reach it."""
    host = host_of(address)
    return host if host in ("127.0.0.1", "::1", "localhost") else str(get_ip(host))


def port_range() -> tuple[int, int] | None:
    """Return the ports that a fit may listen on: Dask's setting ``accelerando.ports``, or None."""
    text = dask.config.get("accelerando.ports", None)
    if text is None:
        return None
    first, _, last = str(text).partition(":")
    if first.isdecimal() and last.isdecimal():
        ports = int(first), int(last)
        if 1024 <= ports[0] <= ports[1] - 99 <= 65436:  # gloo finds one of 100 in seconds
            return ports
    raise ValueError(
        "Dask's setting accelerando.ports must be a range of 100 ports or more between 1024 and "
        f"65535, such as '36000:36999'. Got {text!r} instead."
    )


def threads_by_host(workers: dict[str, Any]) -> dict[str, int]:
    """Return the threads that Dask gave to the workers of each machine."""
    threads: Counter[str] = Counter()
    for address, facts in workers.items():
        threads[host_of(address)] += int(facts.get("nthreads", 1))
    return dict(threads)


def versions_here(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of Python and of packages in this process; None for missing ones."""
    return dict(dask_versions.get_versions(packages)["packages"])


def versions_of(
    client: Any, workers: Iterable[str], packages: Iterable[str], seconds: float
) -> dict[str, dict[str, str | None]]:
    """Return the same for workers; those that do not answer within `seconds` are left out.

    Dask's own request: nothing is pickled, and nothing is imported there.
    """
    found: dict[str, dict[str, str | None]] = {}
    message = {"op": "versions", "packages": list(packages)}

    async def ask(worker: str) -> None:
        with contextlib.suppress(OSError, KeyError):  # it has left
            answer = await client.scheduler.broadcast(
                msg=message, workers=[worker], on_error="ignore"
            )
            found[worker] = answer[worker]["packages"]

    async def ask_all() -> None:
        asked = [asyncio.create_task(ask(worker)) for worker in workers]
        _, late = await asyncio.wait(asked, timeout=seconds)
        for task in late:
            task.cancel()

    client.sync(ask_all)
    return found


# -- topics and plugins on the scheduler ----------------------------------------------------------


def stop_listening(client: Any, topic: str) -> None:
    """End a client's subscription and drop the topic with its events."""
    with contextlib.suppress(Exception):  # a scheduler that is gone has no topics
        client.unsubscribe_topic(topic)
        if client.status == "running":  # otherwise the client would wait for a scheduler
            client.run_on_scheduler(_drop_topic, topic)


async def _drop_topic(topic: str, dask_scheduler: Any = None) -> None:
    topics = dask_scheduler._broker._topics
    for _ in range(100):  # that the client unsubscribed arrives on another way
        if topic not in topics or not topics[topic].subscribers:
            break
        await asyncio.sleep(0.01)
    topics.pop(topic, None)
    drop_late(dask_scheduler, topic)


def drop_late(scheduler: Any, topic: str) -> None:
    """Drop a topic when the last events about it must have arrived."""
    scheduler.loop.call_later(_LATE_SECONDS, scheduler._broker._topics.pop, topic, None)


def plugin_of(scheduler: Any, name: str) -> Any:
    """Return a plugin of the scheduler, or None."""
    return scheduler.plugins.get(name)


def forget_plugin(scheduler: Any, name: str) -> None:
    """Remove a plugin from the scheduler without waiting for it."""
    scheduler.plugins.pop(name, None)


# -- workers that are about to leave --------------------------------------------------------------


def closing_among(workers: dict[str, Any]) -> tuple[str, ...]:
    """Return the workers that are about to leave, of what :func:`workers_of` returned."""
    closing = ("closing", "closing_gracefully")
    return tuple(worker for worker, facts in workers.items() if facts.get("status") in closing)


# -- the size of a cluster ------------------------------------------------------------------------

_AGAIN_SECONDS = 5.0  # between two requests for the same number
_ASKED = (
    "The cluster was asked for {} workers. Look at its queue and into the logs of its jobs: they "
    "wait longer than worker_timeout, or end before a worker registers."
)
_UNASKED = " Without a number as max_workers, fit asks for none: pass one, or call cluster.scale."


class ClusterScaling:
    """Ask a cluster for workers, and give them back.

    Only a cluster that the client belongs to can be asked, up to a number of workers that the user
    named; without one it is left alone. An adaptive cluster gets another minimum, any other one is
    scaled. Afterwards it has the size that it had before.

    Parameters
    ----------
    cluster : distributed cluster object or None
        ``client.cluster``.
    most : int or None
        ``max_workers``; None asks for nothing.
    log : callable
        Receives an event and a sentence if the cluster refuses.
    """

    def __init__(self, cluster: Any, most: int | None, log: Any = lambda *_: None) -> None:
        self.cluster, self.most, self.log = cluster, most, log
        self.asked, self._asked_at, self.refused = 0, -math.inf, ""
        self.adaptive = getattr(cluster, "_adaptive", None)
        # The planned size: after the loss of a worker, the cluster is smaller for a moment.
        planned = getattr(cluster, "plan", None)
        self._before: int | None = None if planned is None else len(planned)
        if self.adaptive is not None:
            self._before = self.adaptive.minimum

    @property
    def possible(self) -> bool:
        """Whether the cluster can be asked."""
        return self.most is not None and (
            self.adaptive is not None
            or (
                callable(getattr(self.cluster, "scale", None))
                and getattr(self.cluster, "_supports_scaling", True)
            )
        )

    def check(self, present: int) -> None:
        """Refuse to wait for workers that nobody asks for; `present` is the number there are."""
        if self.adaptive is not None and not present and not self.possible and not self._before:
            raise UnsupportedError(
                "The cluster adapts, may have no workers and has none, and max_workers=None or "
                "'auto' asks it for nothing. Pass a number as max_workers, or "
                "cluster.adapt(minimum=1, ...)."
            )

    def ask(self, wanted: int, present: int, missing: int) -> None:
        """Ask for workers if there are too few, and again while they are missing.

        A cluster notices after a while that jobs have ended, and starts others when it is asked
        again for the same number. An adaptive one does not ask itself.

        Parameters
        ----------
        wanted : int
            Ranks that should run.
        present : int
            Workers that the cluster has and that ranks can use.
        missing : int
            Ranks for which there is no worker.
        """
        if not self.possible:
            return
        now = time.monotonic()
        again = missing > 0 and now - self._asked_at >= _AGAIN_SECONDS
        if self.adaptive is not None:
            if wanted > self.asked:
                # Adaptive scaling counts waiting tasks, and ranks are pinned to workers that exist.
                self.adaptive.minimum = max(self._before or 0, min(wanted, self.adaptive.maximum))
                self.asked, self._asked_at = wanted, now
            elif again and hasattr(self.cluster, "plan"):
                self._asked_at = now
                self._scale(len(self.cluster.plan))  # as adaptive scaling does
        elif missing > 0 and (self.asked != wanted or again):
            if not self.asked:
                self._before = max(self._before or 0, present)
            self.asked, self._asked_at = wanted, now
            self._scale(max(self._before or 0, present + missing))

    def _scale(self, number: int) -> None:
        """Scale, or use a cluster that refuses (a quota, a server that is away) as it is."""
        before, self.refused = self.refused, ""
        try:
            self.cluster.scale(number)
        except Exception as error:  # of the program that starts workers
            why = f"{type(error).__name__}: {error}".rstrip(".")
            self.refused = f"The cluster cannot be scaled to {number} workers: {why}."
        if self.refused not in ("", before):
            self.log("refused", self.refused)

    def remark(self, present: int) -> str:
        """Return where to look if the cluster was asked for workers and has none."""
        if not self.asked:
            return _UNASKED if self.most is None and self.cluster and not present else ""
        return "" if present else f" {self.refused or _ASKED.format(self.asked)}"

    def shrink(self, wanted: int) -> None:
        """Give back workers that were asked for and are not needed any more."""
        if not self.asked:
            return
        self.asked = wanted
        if self.adaptive is not None:
            self.adaptive.minimum = max(self._before or 0, wanted)
        else:
            self._reduce_to(max(self._before or 0, wanted))

    def restore(self) -> None:
        """Give the cluster the size that it had before."""
        if not self.asked:
            return
        self.asked = 0
        with contextlib.suppress(Exception):  # the user may have closed it
            if self.adaptive is not None:
                self.adaptive.minimum = self._before
            else:
                self._reduce_to(self._before or 0)

    def _reduce_to(self, number: int) -> None:
        """Scale down only: to be asked for its own size makes a cluster start lost jobs again."""
        planned = getattr(self.cluster, "plan", None)
        if planned is None or len(planned) > number:
            self._scale(number)


# -- demand --------------------------------------------------------------------------------------


def show_demand(client: Any, name: str, workers: int) -> None:
    """Tell the scheduler how many workers are useful; 0 forgets it.

    An adaptive cluster asks the scheduler for its target. The scheduler counts only tasks that it
    has, but a search submits a task when there is a worker for it. The demand ends with the client.
    """
    with contextlib.suppress(OSError):  # a scheduler that is gone has no workers
        client.run_on_scheduler(_set_demand, name, client.id, workers)


async def _set_demand(name: str, client: str, workers: int, dask_scheduler: Any = None) -> None:
    demands = getattr(dask_scheduler, "_accelerando_demands", None)
    if demands is None:
        demands = dask_scheduler._accelerando_demands = {}
        dask_scheduler.handlers["adaptive_target"] = _with_demands(dask_scheduler, demands)
    demands.pop(name, None)
    if workers:
        demands[name] = (client, workers)


def _with_demands(scheduler: Any, demands: dict[str, tuple[str, int]]) -> Any:
    target = scheduler.handlers["adaptive_target"]

    def adaptive_target(target_duration: Any = None) -> int:
        shown = sum(n for client, n in list(demands.values()) if client in scheduler.clients)
        return max(int(target(target_duration)), shown)

    return adaptive_target


def replace_lost_workers(client: Any, present: int) -> None:
    """Let a cluster start the workers again that it has given up.

    A local cluster closes the nanny of a worker that is away 15 seconds after it was lost, even if
    the worker has come back and was lost once more in between.
    """
    cluster: Any = getattr(client, "cluster", None)
    planned = getattr(cluster, "worker_spec", None)
    if planned is None or getattr(cluster, "_adaptive", None) is not None:
        return
    if present < len(planned) and not set(planned) <= set(cluster.workers):
        with contextlib.suppress(Exception):  # it may refuse; the others go on
            cluster.scale(len(planned))


# -- the chores of a worker -----------------------------------------------------------------------

_CHORES = ("profile", "tick")
_MILLISECONDS = 500.0  # Dask warns if a worker did not wake up for three seconds

_lock = threading.Lock()
_users: dict[int, int] = {}  # ranks by worker
_before: dict[int, dict[str, float]] = {}


class _HideFailed(logging.Filter):
    """Drop a worker's block about a task of ours that failed: the driver raises the error."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        return not (text.startswith("Compute Failed") and "accelerando-" in record.getMessage())


def hide_failed_ranks() -> None:
    """Let this process not print that a rank failed; what other tasks print stays."""
    logger = logging.getLogger("distributed.worker")
    if not any(type(one) is _HideFailed for one in logger.filters):
        logger.addFilter(_HideFailed())


def ranks_on(worker: Any) -> int:
    """Return the number of ranks that live on a worker of this process."""
    with _lock:
        return _users.get(id(worker), 0)


@contextmanager
def quiet_worker(worker: Any) -> Iterator[None]:
    """Make a worker's most frequent chores rare; ranks of several fits are counted.

    A worker wakes up a hundred times a second to profile its tasks, and fifty times to check
    whether it is responsive. Python runs one thread at a time, so each time the rank has to wait.
    """
    chores = getattr(worker, "periodic_callbacks", {})
    chores = {name: chores[name] for name in _CHORES if name in chores}
    key = id(worker)
    with _lock:
        _users[key] = _users.get(key, 0) + 1
        if _users[key] == 1:
            _before[key] = {name: chore.callback_time for name, chore in chores.items()}
            for chore in chores.values():
                chore.callback_time = max(chore.callback_time, _MILLISECONDS)
    try:
        yield
    finally:
        with _lock:
            _users[key] -= 1
            if not _users[key]:
                del _users[key]
                for name, milliseconds in _before.pop(key).items():
                    chores[name].callback_time = milliseconds
