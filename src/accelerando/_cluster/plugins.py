"""Plugins on the processes of a cluster: a mailbox, notice before leaving, a shield from Ctrl-C.

The scheduler outlives every worker and knows which ones join, leave, and are about to leave. If it
cannot serve the mailbox (it has no torch, or its ports are closed to the driver), the driver does.

A worker that gets SIGTERM (preemption), is retired or closed tells the driver, and waits a while
until its rank has left the membership: no update is lost. While a fit or a search runs, Ctrl-C is
for the driver only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed import LocalCluster, NannyPlugin, SchedulerPlugin, WorkerPlugin

from accelerando._cluster.address import Address, listen
from accelerando._cluster.mailbox import Mailbox, MailboxGone, new_secret
from accelerando._cluster.messages import LeaveRequested, WorkerEvent, WorkerJoined, WorkerLeft
from accelerando._dask import (
    Sent,
    ask_all,
    drop_late,
    forget_plugin,
    host_of,
    host_towards,
    plugin_of,
    port_range,
    ranks_on,
)
from accelerando.exceptions import ClusterError

if TYPE_CHECKING:  # the scheduler imports this module on its event loop, and torch takes seconds
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_GRACE_SECONDS = 25.0  # for a rank to leave; SLURM and Kubernetes kill 30 s after SIGTERM
_LOOK_SECONDS = 0.02


def change_of_status(event: Any) -> tuple[str, str] | None:
    """Return the status of a worker before and after, if the scheduler logged that it changed.

    Examples
    --------
    >>> change_of_status({"action": "worker-status-change", "prev-status": "running",
    ...                   "status": "closing_gracefully"})
    ('running', 'closing_gracefully')
    """
    if not isinstance(event, dict) or event.get("action") != "worker-status-change":
        return None
    return str(event["prev-status"]), str(event["status"])


def is_closing(worker: Any) -> bool:
    """Return True on a worker that is about to leave."""
    return worker.status.name in ("closing", "closing_gracefully")


def ends_by_sigterm(worker: Any) -> bool:
    """Return True if SIGTERM to this process ends the worker at once.

    That is so below a nanny, and for ``dask worker --no-nanny``, whose handler does not close the
    worker. Handlers can be set in the main thread only.
    """
    handler = signal.getsignal(signal.SIGTERM)
    below_nanny = bool(worker.nanny) and handler is signal.SIG_DFL
    of_dask = getattr(handler, "__module__", None) == "distributed._signals"
    return _in_main_thread() and (below_nanny or of_dask)


# -- on the scheduler -----------------------------------------------------------------------------


def serve_store(host: str, ports: tuple[int, int] | None = None) -> TCPStore:
    """Serve a store on one address of this machine, on a free port."""
    from accelerando._engine._torch import make_store

    listener = listen(host, ports, backlog=4096)
    port = listener.getsockname()[1]
    store: TCPStore = make_store(host, port, is_master=True, master_listen_fd=listener.detach())
    return store


class Owner(SchedulerPlugin):  # type: ignore[misc]
    """Remove a plugin from workers and nannies when the driver's client has left, however."""

    def __init__(self, name: str, client: str, owned: str) -> None:
        self.name, self.client, self.owned = name, client, owned

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Remove the plugin of a driver that was killed, too."""
        if client == self.client:
            forget_plugin(scheduler, self.name)
            if self.owned in scheduler.worker_plugins:
                scheduler.loop.add_callback(scheduler.unregister_worker_plugin, None, self.owned)
            if self.owned in scheduler.nanny_plugins:
                scheduler.loop.add_callback(scheduler.unregister_nanny_plugin, None, self.owned)


class MailboxPlugin(Owner):
    """Serve the mailbox of one run on the Dask scheduler.

    It reports workers that join and leave, or are about to. When the driver's client leaves, in
    whatever way, it closes the store: that is how ranks notice.
    """

    def __init__(self, run: str, client: str, ports: tuple[int, int] | None = None) -> None:
        super().__init__(f"accelerando-{run}", client, f"accelerando-leave-{run}")
        self.ports, self.secret = ports, new_secret()
        self.mailbox: Mailbox | None = None
        self.retiring: set[str] = set()

    async def start(self, scheduler: Any) -> None:
        """Serve the store; torch may take seconds to import, so not on the event loop."""
        host = host_of(scheduler.address)
        store = await asyncio.to_thread(serve_store, host, self.ports)
        self.mailbox = Mailbox(Address(host, store.port, self.secret, self.ports), store)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Report a worker that joined."""
        self._report(WorkerJoined(worker))

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Report a worker that died, was retired, or is restarted by its Nanny."""
        self._report(WorkerLeft(worker, retired=worker in self.retiring))
        self.retiring.discard(worker)

    def log_event(self, topic: str, msg: Any) -> None:
        """Report a worker that is about to leave, and one that stays after all."""
        before, after = change_of_status(msg) or (None, None)
        if after == "closing_gracefully":
            self.retiring.add(topic)
            self._report(LeaveRequested(topic))
        elif after == "closing":
            self.retiring.discard(topic)  # it is removed when it has ended
            self._report(LeaveRequested(topic))
        elif before == "closing_gracefully":
            self.retiring.discard(topic)
            self._report(WorkerJoined(topic))

    def _report(self, event: WorkerEvent) -> None:
        if self.mailbox is not None:
            with contextlib.suppress(MailboxGone):
                self.mailbox.report(event)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Close the store when the driver is gone."""
        super().remove_client(scheduler, client)
        if client == self.client:
            self.mailbox = None
            drop_late(scheduler, self.name)

    async def close(self) -> None:
        """Close the store."""
        self.mailbox = None


def _address(name: str, dask_scheduler: Any = None) -> Address | None:
    plugin = plugin_of(dask_scheduler, name)
    return None if plugin is None or plugin.mailbox is None else plugin.mailbox.address


# -- on workers -----------------------------------------------------------------------------------

# Runs in any Python, with or without accelerando.
_LOAD = """
def load(kind, plugin, state):
    try:
        from importlib import import_module

        made = object.__new__(getattr(import_module("accelerando._cluster.plugins"), kind))
    except Exception:
        return plugin()
    vars(made).update(state)
    return made
"""


class _Optional:
    """A plugin that workers ignore which cannot load it: those without accelerando, for example.

    Dask sends a plugin to all workers, also to those of others and to those that join, and a worker
    that cannot load a plugin does not start.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        base = NannyPlugin if isinstance(self, NannyPlugin) else WorkerPlugin
        return Sent(_LOAD, "load"), (type(self).__name__, base, vars(self))


_registered: dict[str, LeavePlugin] = {}  # of this process
_handler: Any = signal.SIG_DFL  # of SIGTERM, before the first of them


class LeavePlugin(_Optional, WorkerPlugin):  # type: ignore[misc]
    """Let the rank of one run leave the membership before its worker ends."""

    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.address: Any = tuple(address)  # loads without accelerando
        self.worker: Any = None

    def setup(self, worker: Any) -> None:
        """Listen to SIGTERM, if it would end the worker at once."""
        global _handler  # noqa: PLW0603  the handlers of a process are global, too
        self.worker = worker
        _registered[self.name] = self
        if ends_by_sigterm(worker):
            _handler = signal.signal(signal.SIGTERM, _terminate)

    async def teardown(self, worker: Any) -> None:
        """Wait for the rank if the worker is closing, not if the fit is over."""
        if is_closing(worker) and ranks_on(worker):
            await asyncio.to_thread(self.report)
            end = time.monotonic() + _GRACE_SECONDS
            while ranks_on(worker) and time.monotonic() < end:
                await asyncio.sleep(_LOOK_SECONDS)
        _registered.pop(self.name, None)
        if not _registered and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, _handler)

    def report(self) -> None:
        """Tell the driver."""
        with contextlib.suppress(MailboxGone):
            Mailbox(Address(*self.address)).report(LeaveRequested(self.worker.address))


def _terminate(*_: Any) -> None:
    signal.signal(signal.SIGTERM, _handler)  # a second one does not wait
    threading.Thread(target=_leave_and_end, name="accelerando-leave", daemon=True).start()


def _leave_and_end() -> None:
    """Wait until the ranks of this process have left, then end as SIGTERM does."""
    plugins = [plugin for plugin in _registered.values() if ranks_on(plugin.worker)]
    for plugin in plugins:
        plugin.report()
    end = time.monotonic() + _GRACE_SECONDS
    while any(ranks_on(plugin.worker) for plugin in plugins) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


# -- a shield from Ctrl-C, on workers and nannies --------------------------------------------------

_shields = 0  # plugins that shield this process
_interrupt: Any = None  # the handler of SIGINT, before the first of them
_ended: set[str] = set()  # names of those that were removed before they arrived


class _Shield(_Optional):
    """A plugin that makes a process ignore the driver's Ctrl-C while it is registered.

    A terminal sends SIGINT to all processes of its process group, and so does Jupyter: not only to
    the driver, which stops after the current update, but also to the workers that it has started.
    Processes on other hosts, of other groups, and workers that are threads of the driver are left
    alone.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.group, self.host = os.getpgid(0), socket.gethostname()
        self.active = False

    def setup(self, *_: Any, **__: Any) -> None:
        """Ignore Ctrl-C. Dask calls this for workers that join later, too."""
        global _shields, _interrupt  # noqa: PLW0603  the handlers of a process are global, too
        same_group = os.getpgid(0) == self.group and socket.gethostname() == self.host
        if self.active or self.name in _ended or not same_group or not _in_main_thread():
            return
        self.active = True
        _shields += 1
        if _shields == 1:
            _interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Restore the handler when nobody needs the shield any more."""
        global _shields, _interrupt  # noqa: PLW0603
        if not self.active:
            return
        self.active = False
        _shields -= 1
        if _shields == 0 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            before, _interrupt = _interrupt, None
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class WorkerShield(_Shield, WorkerPlugin):  # type: ignore[misc]
    """Shield workers."""


class NannyShield(_Shield, NannyPlugin):  # type: ignore[misc]
    """Shield nannies that run as separate processes: they would end their workers."""


# -- on the driver --------------------------------------------------------------------------------


@contextmanager
def open_mailbox(client: Any, run: str) -> Iterator[Mailbox]:
    """Open the mailbox of one run; leave nothing behind."""
    ports = port_range()
    plugin = MailboxPlugin(run, client.id, ports)
    mailbox = None
    with contextlib.suppress(Exception):  # whatever prevents it: no torch, no port, no permission
        client.register_plugin(plugin)
        address = client.run_on_scheduler(_address, plugin.name)
        mailbox = None if address is None else Mailbox(Address(*address))
    if mailbox is None:
        host = host_towards(client.scheduler.address)
        try:
            store = serve_store(host, ports)
        except OSError as error:
            _forget(client, plugin.name)
            raise ClusterError(
                f"The mailbox of a fit has no port, neither on the scheduler's machine nor here: "
                f"{error}. Name a wider range in Dask's setting accelerando.ports, or wait until "
                "other fits have ended."
            ) from error
        mailbox = Mailbox(Address(host, store.port, plugin.secret, ports), store)
    leave = LeavePlugin(plugin.owned, mailbox.address)
    try:
        register(client, leave)
        yield mailbox
    finally:
        unregister(client, leave.name)
        _forget(client, plugin.name)


def _forget(client: Any, name: str) -> None:
    with contextlib.suppress(Exception):
        if client.status == "running":
            client.unregister_scheduler_plugin(name)


@contextmanager
def shielded(client: Any) -> Iterator[None]:
    """Let no worker of a client's cluster end by Ctrl-C inside the block."""
    name = f"accelerando-shield-{uuid.uuid4().hex[:12]}"
    nannies = not isinstance(client.cluster, LocalCluster)  # whose nannies are in this process
    with contextlib.ExitStack() as stack:
        # Removed also if Ctrl-C comes while it is registered.
        owner = Owner(f"{name}-owner", client.id, name)
        stack.callback(_forget, client, owner.name)
        with contextlib.suppress(Exception):  # of a scheduler without accelerando
            client.register_plugin(owner)
        stack.callback(unregister, client, name)
        if nannies:
            stack.callback(unregister, client, name, nanny=True)
            register(client, NannyShield(name))
        register(client, WorkerShield(name))
        yield


def register(client: Any, plugin: Any) -> None:
    """Register a plugin of workers, or of nannies, on all that answer and on those that join."""
    ask_all(plugin.name, client.register_plugin, plugin)


def unregister(client: Any, name: str, *, nanny: bool = False) -> None:
    """Remove a plugin from all workers, or nannies; there are none without a scheduler."""
    if client.status != "running":
        return
    try:
        ask_all(name, client.unregister_worker_plugin, name, nanny=nanny)
    except Exception:  # a worker that is just starting does not have it yet, or the cluster is gone
        with contextlib.suppress(Exception):
            ask_all(name, client.run, _end, name, nanny=nanny, on_error="ignore")


def _end(name: str, dask_worker: Any = None) -> None:
    """Remove a plugin on a worker; do not begin it if it arrives later."""
    _ended.add(name)
    plugin = None if dask_worker is None else dask_worker.plugins.get(name)
    if isinstance(plugin, _Shield):
        del dask_worker.plugins[name]
        plugin.teardown()
