"""Adapter for Dask: every private or undocumented name of Dask that accelerando depends on.

It finds the workers of a cluster, sends functions to those with another Python, does not wait for
those that hang, removes topics from the scheduler, and makes the chores of a worker rare while a
rank trains on it.
``tests/test_dask.py`` has one test per name, so that a new version of Dask fails with the name that
it changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask
from distributed import versions as dask_versions
from distributed.comm import get_address_host
from distributed.utils import get_ip

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

    async def ask_each() -> None:
        asked = [asyncio.create_task(ask(worker)) for worker in workers]
        _, late = await asyncio.wait(asked, timeout=seconds)
        for task in late:
            task.cancel()

    client.sync(ask_each)
    return found


@dataclass
class Sent:
    """A function that travels as source text: the name of a function, and the text of its module.

    Functions are pickled by reference or as bytecode. The module may be missing in another process,
    and bytecode can crash another version of Python.

    Examples
    --------
    >>> Sent("def double(x): return 2 * x", "double")(21)
    42
    """

    source: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Call the function in this process."""
        compiled, text = self.__reduce__()
        return compiled(*text)(*arguments)

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, str]]]:
        return eval, (_COMPILE, {"source": self.source, "name": self.name})


_COMPILE = "(exec(source, scope := {'__name__': 'sent'}), scope[name])[1]"

# -- processes that do not answer -----------------------------------------------------------------
# A call of the client may wait for minutes, or for ever, for a process that hangs or cannot be
# reached. Such calls are made in a thread: the driver waits for them as long as it makes sense.

_ANSWER_SECONDS = 3.0  # for all workers that can answer
_BEAT_SECONDS = 1.0  # between two looks at heartbeats, which come once or twice a second
_SILENT_SECONDS = 10.0  # without a heartbeat: the worker hangs
_talking: dict[str, threading.Thread] = {}  # the last call about a plugin, until it has ended


def has_given_up(client: Any) -> bool:
    """Return True if the client has lost its scheduler, and has not found it again in time."""
    return client.status in ("closed", "closing")


class Heartbeats:
    """The newest heartbeat of each worker, and when it was noticed."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Any, float]] = {}
        self._looked = 0.0

    def missing(self, workers: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the workers whose newest heartbeat is old; call this about once a second.

        Parameters
        ----------
        workers : mapping
            Facts of the scheduler about each worker, by address.
        """
        now = time.monotonic()
        if now - self._looked > _SILENT_SECONDS / 2:  # this process did not look, or hung itself
            self._newest = {}
        self._looked = now
        for worker, facts in workers.items():
            seen = facts.get("last_seen")
            if seen is None or self._newest.get(worker, (None, now))[0] != seen:
                self._newest[worker] = seen, now
        return tuple(w for w in workers if now - self._newest[w][1] > _SILENT_SECONDS)


def send_to(client: Any, content: Any, worker: str) -> Any:
    """Scatter an object to one worker, for which Dask waits; raise ``TimeoutError`` if it hangs."""
    thread, ended = _begin(client.scatter, content, workers=[worker], hash=False)
    silent, before = 0.0, None
    thread.join(_BEAT_SECONDS)
    while thread.is_alive():
        seen = workers_of(client).get(worker, {}).get("last_seen")
        silent, before = silent + _BEAT_SECONDS if seen == before else 0.0, seen
        if silent >= _SILENT_SECONDS:
            raise TimeoutError(f"Worker {worker} hangs.")
        thread.join(_BEAT_SECONDS)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def ask_all(name: str, function: Any, *arguments: Any, **options: Any) -> None:
    """Call a function of a client that talks to all workers, and do not wait for those that hang.

    The scheduler talks to all at once, waits 30 seconds for a worker that it cannot reach, such as
    one with a wrong ``--interface``, and then raises, although the others have answered. Calls with
    the same `name` take turns: a plugin that is registered late is not removed before.
    """
    before = _talking.get(name)

    def call() -> None:
        if before is not None:
            before.join()
        try:
            function(*arguments, **options)
        finally:
            if _talking.get(name) is threading.current_thread():
                del _talking[name]

    thread, ended = _begin(call)
    thread.join(_ANSWER_SECONDS)
    if thread.is_alive():
        _talking[name] = thread
    if ended and isinstance(ended[0], BaseException) and not isinstance(ended[0], OSError):
        raise ended[0]


def _begin(function: Any, *arguments: Any, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """Call a function in another thread; return it, and a list that gets the result or error."""
    ended: list[Any] = []

    def call() -> None:
        try:
            ended.append(function(*arguments, **options))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=call, name="accelerando-call", daemon=True)
    thread.start()
    return thread, ended


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


def adaptive_of(cluster: Any) -> Any:
    """Return what adapts a cluster to its load; None for a cluster that does not adapt."""
    return getattr(cluster, "_adaptive", None)


def can_scale(cluster: Any) -> bool:
    """Return True if a cluster object can start and stop workers."""
    scales = callable(getattr(cluster, "scale", None)) and getattr(
        cluster, "_supports_scaling", True
    )
    return adaptive_of(cluster) is not None or bool(scales)


# -- demand --------------------------------------------------------------------------------------


def show_demand(client: Any, name: str, workers: int) -> None:
    """Tell the scheduler how many workers are useful; 0 forgets it.

    An adaptive cluster asks the scheduler for its target. The scheduler counts only tasks that it
    has, but a search submits a task when there is a worker for it. The demand ends with the client.
    """
    with contextlib.suppress(Exception):  # a scheduler that is gone, or has no accelerando
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
    if planned is None or adaptive_of(cluster) is not None:
        return
    if present < len(planned) and not set(planned) <= set(cluster.workers):
        with contextlib.suppress(Exception):  # it may refuse; the others continue
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
