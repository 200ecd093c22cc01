"""A cluster whose workers are threads of this process: a fake client, real ranks, no Dask."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from types import SimpleNamespace
from typing import ClassVar

import cloudpickle

from accelerando._cluster.address import Address
from accelerando._cluster.driver.placement import ArrayPlan
from accelerando._cluster.driver.sizing import Limits
from accelerando._cluster.job import ClusterJob
from accelerando._cluster.mailbox import Mailbox, MailboxGone
from accelerando._cluster.worker.rank import Rank
from accelerando._dask import versions_here
from accelerando._engine.data.feed import epoch_order
from accelerando.sync import Averaging
from tests._cluster.worker.plain import PlainBuilder
from tests._engine.comm.ranks import data_of, fit_of, model_of


class ThreadFuture:
    """The future of a rank in a thread, or of data."""

    def __init__(self, value=None, work=None):
        self.value, self.error = value, None
        self.status = "finished" if work is None else "pending"
        self.cancelled = False
        if work is not None:
            self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self.thread.start()

    def _run(self, work):
        try:
            self.error = work()
        except Exception as error:
            self.error = error
        self.status = "finished" if self.error is None else "error"

    def done(self):
        return self.status != "pending"

    def exception(self, timeout=None):
        self.thread.join(timeout)
        return self.error

    def traceback(self):
        return self.error.__traceback__

    def release(self):
        pass

    def cancel(self, force=False):
        self.cancelled = True


class ThreadClient:
    """What a driver needs of a client; a task is a rank in a thread."""

    id = "client"
    cluster = None
    status = "running"
    other_versions: ClassVar[dict[str, str | None]] = {}  # of the workers

    def __init__(self, workers=2):
        self.workers = [f"tcp://127.0.0.{number + 1}:1" for number in range(workers)]
        self.scheduler = SimpleNamespace(
            address="tcp://127.0.0.1:8786", identity=None, broadcast=self.broadcast
        )
        self.futures, self.ranks, self.topics = {}, {}, {}

    def sync(self, function, **kwargs):
        if function is not None:  # a question about versions
            return asyncio.run(function())
        return {"workers": {worker: {"nthreads": 1} for worker in self.workers}}

    def register_plugin(self, plugin):
        if hasattr(plugin, "mailbox"):  # without a scheduler there is none
            raise NotImplementedError

    def unregister_worker_plugin(self, name, nanny=None):
        return None

    def subscribe_topic(self, topic, handler):
        self.topics[topic] = handler

    def unsubscribe_topic(self, topic):
        del self.topics[topic]

    async def broadcast(self, msg, workers, on_error):
        packages = {**versions_here(msg["packages"]), **self.other_versions}
        return {worker: {"packages": packages} for worker in workers}

    def scatter(self, content, workers, hash=True):
        return ThreadFuture(content)

    def submit(self, function, sealed, data, address, rank, *, workers, **options):
        def work():
            spec = cloudpickle.loads(sealed.value)
            times = itertools.count()

            def log_event(facts):
                if spec.topic in self.topics:
                    self.topics[spec.topic]((next(times), facts))

            mailbox = Mailbox(Address(*address))
            one = Rank(spec, data.value, mailbox, rank, "127.0.0.1", log_event)
            self.ranks[rank] = one
            one.warm_up()
            with contextlib.suppress(MailboxGone):
                one.run()
            one.leave_group()
            return one.error

        self.futures[rank] = future = ThreadFuture(work=work)
        return future


class FakeInterrupt:
    """Ctrl-C."""

    pending = False

    def check(self):
        if self.pending:
            raise KeyboardInterrupt


def job_of(client, *, ranks=2, epochs=2, rows=12, strategy=None, builder=None, **values):
    """Return a job of a small model; the driver's parameters have another seed than the ranks'."""
    settings = {name: values.pop(name) for name in ("checkpoint_every",) if name in values}
    if strategy is not None:
        settings["strategy"] = strategy
    builder = builder or PlainBuilder()
    model = model_of(**builder.settings)  # ranks take over the driver's modules
    fit = fit_of(model, rows=rows, epochs=epochs)
    fit.spec = type(fit.spec)(fit.spec.control, rank_timeout=5.0, **settings)
    averages = isinstance(strategy, Averaging)
    if averages:
        fit.state.adopt(fit.spec.control, strategy, None)
    defaults = {
        "client": client,
        "fit": fit,
        "builder": builder,
        "feed": ArrayPlan(None, epoch_order, drop_last=False),
        "validation": None,
        "content": list(data_of()),
        "owners": [],
        "chunks": None,
        "limits": Limits(
            examples_per_worker=-(-rows // ranks), max_workers=ranks, averages=averages
        ),
        "worker_timeout": 20.0,
        "interrupt": FakeInterrupt(),
        "progress": None,
        "log": [],
        "verbose": False,
        "add_records": lambda rows: None,
        "add_to_history": lambda values: None,
        "save_checkpoint": lambda: None,
    }
    return ClusterJob(**{**defaults, **values})
