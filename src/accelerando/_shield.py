"""Shield workers from Ctrl-C while a fit or a search runs on them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import LocalCluster, NannyPlugin, WorkerPlugin

_ANSWER_SECONDS = 3.0  # for all workers that can answer
_shields = 0  # plugins that shield this process
_handler: Any = None  # of SIGINT, before the first of them


class _Shield:
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
        global _shields, _handler  # noqa: PLW0603  the handlers of a process are global, too
        same_group = os.getpgid(0) == self.group and socket.gethostname() == self.host
        if self.active or not same_group or not _in_main_thread():
            return
        self.active = True
        _shields += 1
        if _shields == 1:
            _handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Restore the handler when nobody needs the shield any more."""
        global _shields, _handler  # noqa: PLW0603
        if not self.active:
            return
        self.active = False
        _shields -= 1
        if _shields == 0 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            before, _handler = _handler, None
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def __reduce__(self) -> tuple[Any, ...]:
        kind, plugin = type(self).__name__, type(self).__mro__[2]

        def load(state: dict[str, Any]) -> Any:
            # Pickled by value, because Dask sends a plugin to all workers, and one that cannot load
            # it does not start: those without accelerando, or with another one, ignore it.
            try:
                from importlib import import_module

                shield = object.__new__(getattr(import_module("accelerando._shield"), kind))
            except (ImportError, AttributeError):
                return plugin()
            vars(shield).update(state)
            return shield

        return load, (vars(self),)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class WorkerShield(_Shield, WorkerPlugin):  # type: ignore[misc]
    """Shield workers."""


class NannyShield(_Shield, NannyPlugin):  # type: ignore[misc]
    """Shield nannies that are processes of their own: they would end their workers."""


@contextmanager
def shielded(client: Any) -> Iterator[None]:
    """Let no worker of a client's cluster end by Ctrl-C inside the block.

    The one implementation for fits and searches.
    """
    name = f"accelerando-shield-{uuid.uuid4().hex[:12]}"
    nannies = not isinstance(client.cluster, LocalCluster)  # whose nannies are in this process
    with contextlib.ExitStack() as stack:
        if nannies:
            stack.callback(unregister, client, name, nanny=True)
            register(client, NannyShield(name))
        stack.callback(unregister, client, name)
        register(client, WorkerShield(name))
        yield


def register(client: Any, plugin: Any) -> None:
    """Register a plugin of workers, or of nannies, on all that answer and on those that join."""
    _without_the_silent(client.register_plugin, plugin)


def unregister(client: Any, name: str, **options: Any) -> None:
    """Remove a plugin from all workers, or nannies."""
    with contextlib.suppress(Exception):  # a cluster that is gone has no plugins
        _without_the_silent(client.unregister_worker_plugin, name, **options)


def _without_the_silent(function: Any, *arguments: Any, **options: Any) -> None:
    """Call a function of a client that talks to all workers, and do not wait for those that hang.

    The scheduler talks to all at once, waits 30 seconds for a worker that it cannot reach, such as
    one with a wrong ``--interface``, and then raises, although the others have answered.
    """
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function(*arguments, **options)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="accelerando-plugin", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if errors and not isinstance(errors[0], OSError):
        raise errors[0]
