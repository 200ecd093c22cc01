"""The processes of a server: web processes and a worker, restarted when one dies."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from accelerando.exceptions import StateError

__all__ = ["Serving", "supervise"]

# Seconds before a restart, at first and at most; of a stable run; before a process is killed.
_MIN_DELAY = 0.2
_MAX_DELAY = 5.0
_STABLE = 10.0
_GRACE = 8.0
_CANNOT_OPEN = 3  # exit code of a process that cannot open the database; it has said why

log = logging.getLogger("accelerando.crowd")


@dataclass(frozen=True)
class Serving:
    """Settings of a server.

    Attributes
    ----------
    database : str
        URL, which the processes get through a pipe and not on a command line.
    processes : int
        Number of web processes.
    worker : bool
        Whether this server has a worker; several servers with one database need one worker.
    turn_seconds : float
        Seconds between two turns of the worker.
    scheduler : str or None
        Dask scheduler for large searches.
    certificate, key : str or None
        Files for TLS.
    proxies : str or None
        Addresses of proxies whose X-Forwarded headers are trusted.
    root_path : str
        URL prefix under which a proxy serves this server.
    server : str
        Identifier of this server, which its workers use as the owner of their lease.
    """

    database: str
    processes: int = 1
    worker: bool = True
    turn_seconds: float = 0.25
    scheduler: str | None = None
    certificate: str | None = None
    key: str | None = None
    proxies: str | None = None
    root_path: str = ""
    server: str = field(default_factory=lambda: secrets.token_hex(8))


def supervise(serving: Serving, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Run the processes until Ctrl-C or SIGTERM; restart those that die."""
    context = multiprocessing.get_context("spawn")
    stop = threading.Event()
    waker, woken = context.Pipe()

    def request_stop(*_: Any) -> None:
        stop.set()
        waker.send_bytes(b"x")

    before = {s: signal.signal(s, request_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    children: dict[str, _Child] = {}
    for number in range(serving.processes):
        children[f"web-{number}"] = _Child(
            lambda: context.Process(target=run_web, args=(serving, listener), name="web")
        )
    if serving.worker:
        children["worker"] = _Child(
            lambda: context.Process(target=run_worker, args=(serving,), name="worker")
        )
    from sqlalchemy.exc import DBAPIError

    from accelerando.crowd.store.store import settle

    try:
        for child in children.values():
            child.start()
        ready()
        while not stop.is_set():
            pause = min((child.due() for child in children.values()), default=1.0)
            sentinels = [c.process.sentinel for c in children.values() if c.process is not None]
            wait([*sentinels, woken], timeout=pause)
            for name, child in children.items():
                child.check(name)
    finally:
        for child in children.values():
            child.stop()
        with contextlib.suppress(DBAPIError):  # a damaged or full disk has been reported before
            settle(serving.database)
        for sign, handler in before.items():
            signal.signal(sign, handler)


class _Child:
    """A process that is restarted when it dies."""

    def __init__(self, make: Callable[[], BaseProcess]) -> None:
        self.make = make
        self.process: BaseProcess | None = None
        self.started = self.next_start = 0.0
        self.delay = _MIN_DELAY

    def start(self) -> None:
        self.process = self.make()
        self.process.start()
        self.started = time.monotonic()

    def due(self) -> float:
        """Return the seconds until the next restart."""
        return 60.0 if self.process is not None else max(0.0, self.next_start - time.monotonic())

    def check(self, name: str) -> None:
        """Restart the process if it has died and the delay is over."""
        now = time.monotonic()
        if self.process is not None and not self.process.is_alive():
            self.process.join()
            code = self.process.exitcode
            if code != _CANNOT_OPEN:
                log.warning("Process %s died with exit code %s; restarting it.", name, code)
            # Back off if the process dies repeatedly.
            is_stable = now - self.started > _STABLE
            self.delay = _MIN_DELAY if is_stable else min(2 * self.delay, _MAX_DELAY)
            self.process, self.next_start = None, now + self.delay
        if self.process is None and now >= self.next_start:
            self.start()

    def stop(self) -> None:
        if self.process is None or not self.process.is_alive():
            return
        self.process.terminate()
        self.process.join(_GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run_web(serving: Serving, listener: socket.socket) -> None:
    """Run a web process."""
    _die_with_parent()
    _set_process_name("crowd-web")
    import uvicorn

    from accelerando.crowd.store import Store
    from accelerando.crowd.web.app import create_app
    from accelerando.crowd.web.ill import create_ill_app

    app: Any
    try:
        store = Store(serving.database)
        store.check()
        app, problem = create_app(store), None
    except StateError as error:
        log.critical("%s", error)
        app, problem = create_ill_app(getattr(error, "trouble", "other")), error
    config = uvicorn.Config(
        app,
        access_log=False,  # logs must not contain addresses or participants' names
        log_level="warning",
        server_header=False,
        proxy_headers=serving.proxies is not None,
        forwarded_allow_ips=serving.proxies,
        root_path=serving.root_path,
        ssl_certfile=serving.certificate,
        ssl_keyfile=serving.key,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=5,
        loop="auto",
        http=_http(),
        ws="none",
    )
    server = uvicorn.Server(config)
    if problem is not None:  # refuse requests for a while; the next process tries again
        timer = threading.Timer(_MAX_DELAY, setattr, (server, "should_exit", True))
        timer.daemon = True
        timer.start()
    server.run(sockets=[listener])
    if problem is not None:
        raise SystemExit(_CANNOT_OPEN)


def _http() -> Any:
    try:
        from accelerando.crowd.serve.protocol import LimitedProtocol
    except ModuleNotFoundError:
        return "h11"  # slower, with its own limits
    return LimitedProtocol


def run_worker(serving: Serving) -> None:
    """Run the worker process, at low priority and with one thread."""
    _die_with_parent()
    _set_process_name("crowd-worker")
    os.nice(5)  # participants wait for the web processes, not for this one
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from accelerando.crowd.serve.worker import Worker
    from accelerando.crowd.store import Store

    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        store = Store(serving.database, connections=2)
    except StateError as error:
        log.critical("%s", error)
        raise SystemExit(_CANNOT_OPEN) from None
    worker = Worker(
        store,
        turn_seconds=serving.turn_seconds,
        scheduler=serving.scheduler,
        owner=serving.server,
    )
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: worker.stop.set())
    worker.run()


def _set_process_name(name: str) -> None:
    """Set the name that ``top`` shows, if the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _die_with_parent() -> None:
    """End this process when its parent ends, even if the parent was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
