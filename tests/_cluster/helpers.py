"""What several cluster tests share: slow modules, and actions at an update."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

from distributed import LocalCluster
from skorch.callbacks import Callback
from torch import nn

from accelerando._cluster import rank_task
from tests.nets import MLP


class Paced(nn.Module):
    """An update takes a while, so that something can happen to it."""

    def __init__(self, seconds=0.003, broken_at=None, **params):
        super().__init__()
        self.net = MLP(**params)
        self.seconds = seconds
        self.broken_at = broken_at
        self.calls = 0

    def forward(self, x):
        time.sleep(self.seconds)
        self.calls += self.training
        if self.broken_at is not None and self.calls == self.broken_at:
            raise LookupError("the module's own trouble")
        return self.net(x)


def cluster_of(workers):
    """Return a cluster of processes that may be harmed."""
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )


def without_torch(monkeypatch):
    """Return a set: workers that are put into it look as if they had no torch."""
    workers, ask = set(), rank_task.versions_of

    def pretend(client, asked, packages, seconds):
        found = ask(client, asked, packages, 60.0)
        return {w: {**v, "torch": None} if w in workers else v for w, v in found.items()}

    monkeypatch.setattr(rank_task, "versions_of", pretend)
    return workers


def pids(cluster):
    """Return the processes of the workers that are alive."""
    workers = list(cluster.workers.values())
    return [w.process.pid for w in workers if w.process is not None and w.process.pid]


def kill_for_good(cluster):
    """Kill a worker that its nanny does not start again, so that fewer ranks have to train."""
    nanny = list(cluster.workers.values())[-1]
    nanny.close_gracefully()  # it ends with its worker
    os.kill(nanny.process.pid, signal.SIGKILL)


def when(net, update, action):
    """Act in another thread as soon as this number of updates is known to be done."""

    def wait():
        while (trainer := getattr(net, "_trainer_", None)) is None or (
            trainer.newest_update < update
        ):
            time.sleep(0.002)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def send_signal(client, worker, number=signal.SIGKILL):
    """Send a signal to the process of a worker; return its pid."""
    pid = client.run(os.getpid, workers=[worker])[worker]
    os.kill(pid, number)
    return pid


def kill_member(client, net, member):
    """Kill the worker of a member of the current process group."""
    return send_signal(client, net._trainer_.membership[member].worker)


class Wait(Callback):
    """Begin no epoch before the ranks that are wanted are ready, however long that takes here."""

    def on_epoch_begin(self, net, **kwargs):
        trainer = getattr(net, "_trainer_", None)
        if trainer is None or trainer.state.call is None:
            return  # the first segment waits for all ranks itself
        trainer._result = None  # of the last call; events are not read while there is one
        while True:
            state = trainer.state
            bound = state.sizing.bound(len(state.members), len(state.workers))
            if state.counts.get("ready", 0) >= max(state.ahead, bound.ranks):
                return
            trainer._pump()
