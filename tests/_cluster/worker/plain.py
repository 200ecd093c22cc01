"""Ranks as threads of this process: a plain model, a real mailbox, no Dask."""

from __future__ import annotations

import contextlib
import threading
from contextlib import contextmanager

import torch

from accelerando._cluster.address import Address
from accelerando._cluster.driver.placement import ArrayPlan, Placed, ValidationPlan
from accelerando._cluster.job import RankSpec
from accelerando._cluster.mailbox import Mailbox
from accelerando._cluster.messages import Stop, TrainSegment
from accelerando._cluster.plugins import serve_store
from accelerando._cluster.worker.rank import Rank
from accelerando._engine._torch import pack
from accelerando._engine.data.feed import epoch_order
from accelerando._engine.loop import FitSpec
from accelerando._engine.micro_batch import MicroBatch
from accelerando._engine.position import Part
from accelerando.policies._controller import Controller
from accelerando.sync import AllReduce
from tests._engine.comm.ranks import CPU, data_of, model_of, state_of

ROWS = 50


class PlainRankModel:
    """The model of a rank without an estimator."""

    device = CPU

    def __init__(self, model):
        self.model = model
        self.seen = []

    def adopt(self, components):
        self.model.components = components
        self.model.module = components.modules["module"]
        self.model.criterion = components.criteria["criterion"]
        self.model.optimizers = list(components.optimizers.values())
        self.model.refresh()

    def updated(self, batch, result):
        self.updates = getattr(self, "updates", 0) + 1

    def prepare(self, feed):
        self.feed = feed

    def evaluate(self, batch):
        X, y = batch
        with torch.no_grad():
            y_pred = self.model.module(X)
            return self.model.criterion(y_pred, y), y_pred

    def begin_update(self, state):
        pass

    def gradients_ready(self, batch, state, *, alone):
        self.seen.append(batch.size)


class PlainBuilder:
    """Builds it; another seed shows whether ranks load the driver's parameters."""

    def __init__(self, **settings):
        self.settings = settings

    def build(self):
        return PlainRankModel(model_of(**{"seed": 99, **self.settings}))


def spec_of(*, rows=12, strategy=None, builder=None, validation=None, **settings):
    return RankSpec(
        builder=builder or PlainBuilder(),
        fit=FitSpec(Controller.of(batch_size=rows), strategy or AllReduce(), **settings),
        feed=ArrayPlan(None, epoch_order, drop_last=False),
        validation=validation,
        micro_batch=MicroBatch(whole=True),
        topic="topic",
    )


def validation_of(rows=20):
    return ValidationPlan(None, rows, ROWS, in_arrays=True)


def start_state(model, *, strategy=None, epochs=2):
    """Return the bytes that the driver sends to the first member of the first segment."""
    state = state_of(model, strategy=strategy, epochs=epochs, n_examples=ROWS)
    return pack(state.state_dict(Part.MODEL | Part.POSITION | Part.REPLICAS | Part.RECORDS))


class Cluster:
    """Ranks as threads, and the driver's end of their mailbox."""

    def __init__(self, size, spec_for):
        store = serve_store("127.0.0.1")
        self.mailbox = Mailbox(Address("127.0.0.1", store.port), store)
        self.events = self.mailbox.events()
        self.progress = []
        self.ranks, self._threads = [], []
        for number in range(size):
            rank = Rank(
                spec_for(number),
                Placed(list(data_of(ROWS))),
                Mailbox(self.mailbox.address),
                f"rank-{number}",
                "127.0.0.1",
                self.progress.append,
            )
            rank.warm_up()
            thread = threading.Thread(target=self._run, args=(rank,), daemon=True)
            thread.start()
            self.ranks.append(rank)
            self._threads.append(thread)
        for _ in self.ranks:
            self.next()  # RankReady

    @staticmethod
    def _run(rank):
        with contextlib.suppress(Exception):
            rank.run()

    def next(self, kind=None, seconds=60.0):
        """Return the next event of a kind; others are left out."""
        while True:
            event = self.events.next(seconds)
            assert event is not None, f"no {kind} arrived"
            if kind is None or isinstance(event, kind):
                return event

    def all(self, kind):
        """Return one event of a kind from every rank, by rank."""
        found = [self.next(kind) for _ in self.ranks]
        return {event.rank: event for event in found}

    def send(self, number, command):
        self.mailbox.send(f"rank-{number}", command)

    def segment(self, members=None, **values):
        """Send TrainSegment to each member."""
        members = range(len(self.ranks)) if members is None else members
        defaults = {
            "segment": 1,
            "generation": 1,
            "source": None,
            "blob": None,
            "epoch": 0,
            "until": 2,
        }
        for group_rank, number in enumerate(members):
            self.send(
                number,
                TrainSegment(
                    **{**defaults, **values}, group_rank=group_rank, group_size=len(members)
                ),
            )

    def close(self):
        for number, thread in enumerate(self._threads):
            if thread.is_alive():
                self.send(number, Stop())
        for thread in self._threads:
            thread.join(20.0)
        for rank in self.ranks:
            rank.leave_group()
        self.events.close()


@contextmanager
def ranks(size=2, *, specs=None, **settings):
    """Run ranks; `specs` gives one its own settings."""
    cluster = Cluster(size, lambda number: spec_of(**{**settings, **(specs or {}).get(number, {})}))
    try:
        yield cluster
    finally:
        cluster.close()
