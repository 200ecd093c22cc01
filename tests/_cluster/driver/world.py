"""A simulated cluster: it carries out the driver's actions, and workers die, freeze and join.

Time is simulated. Ranks of a process group make updates together; what happens to one of them is
noticed by the others, or by nobody until somebody asks. After every step the invariants of the
driver are checked.
"""

from __future__ import annotations

import heapq
import itertools
import random

from accelerando._cluster.driver import state as a
from accelerando._cluster.driver.machine import step
from accelerando._cluster.driver.sizing import Limits, Sizing
from accelerando._cluster.driver.state import DriverState, Key, Phase
from accelerando._cluster.messages import (
    Abandon,
    Close,
    Collect,
    EvaluateBatches,
    Fetch,
    LeaveRequested,
    Pause,
    RankNotStarted,
    Stop,
    Surveyed,
    TaskEnd,
    Tick,
    TrainEpoch,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.invariants import Checks
from tests._cluster.driver.simulated import UPDATE, UPDATES, Rank, SimulatedRanks

KINDS = ("die", "die", "freeze", "many", "all", "lonely", "notice", "retire")
PATIENCE = 25.0  # of a worker with its rank


class World(SimulatedRanks):
    """A cluster with `size` workers on which a driver trains.

    Parameters
    ----------
    seed : int
        Of all that is random.
    size : int
        Workers and ranks.
    failures : int
        How many disasters happen before the world becomes quiet.
    kinds : list of str
        Which disasters happen.
    fetches : callable
        Whether the model is needed at the end of an epoch.
    """

    def __init__(
        self,
        seed,
        size,
        *,
        averages=False,
        failures=30,
        checkpoint_every=None,
        kinds=KINDS,
        fetches=lambda epoch: True,
    ):
        self.kinds, self.fetches = kinds, fetches
        self.random = random.Random(seed)
        self.size, self.averages, self.failures = size, averages, failures
        self.checkpoint_every = checkpoint_every
        self.now = 0.0
        self.heap: list = []
        self.number = itertools.count()
        self.workers = dict.fromkeys(f"w{n}" for n in range(size))
        self.frozen: set[str] = set()
        self.closing: set[str] = set()
        self.unstarted = itertools.count(size)
        self.ranks: dict[str, Rank] = {}
        self.ended: dict[str, TaskEnd] = {}
        self.blobs: dict[str, Key] = {}
        self.here = self.run = Key(0, 0)  # of the driver's model, and of what it has noted
        self.parts: dict[str, tuple] = {}  # of states in the mailbox
        self.waiting: dict[str, list] = {}  # commands to frozen ranks
        self.result: a.Finish | a.Fail | a.RaiseFrom | None = None
        self.segments = self.made = 0  # updates of segments that ended well
        self.starts: list[Key] = []  # of segments
        self.logged: list[str] = []
        self.checks = Checks(self)
        limits = Limits(
            examples_per_worker=1, averages=averages, max_workers=size if averages else None
        )
        self.state = DriverState(Sizing(limits, batch_size=size), averages=averages)
        self.later(1.0, self.survey)
        for _ in range(failures):
            self.later(self.random.uniform(5, 60 + 4 * failures), self.disaster)

    # -- time and events --------------------------------------------------------------------------

    def later(self, seconds, act, *args):
        heapq.heappush(self.heap, (self.now + seconds, next(self.number), act, args))

    def event(self, event):
        """Let the driver see an event and carry out what it wants."""
        before = self.state
        self.state, actions = step(self.state, event, self.now)
        self.checks.step(before, event, actions)
        for action in actions:
            getattr(self, type(action).__name__)(action)

    def call(self, event, limit=20_000.0):
        """Make a call and run the world until it ends."""
        self.result, end = None, self.now + limit
        self.event(event)
        while self.result is None:
            assert self.now < end, f"the driver waits for {self.state.phase.value} forever"
            deadline = self.state.deadline
            if deadline is not None and deadline < self.heap[0][0]:
                self.now = max(self.now, deadline + 1e-6)
                self.event(Tick())
                continue
            self.now, _, act, args = heapq.heappop(self.heap)
            act(*args)
        return self.result

    def survey(self):
        self.later(1.0, self.survey)
        self.event(Surveyed(tuple(self.workers), dict(self.ended)))

    # -- disasters --------------------------------------------------------------------------------

    def disaster(self):
        kind = self.random.choice(self.kinds)
        busy = self.frozen | self.closing
        workers = [worker for worker in self.workers if worker not in busy]
        if not workers:
            return
        if kind in ("notice", "retire"):
            self.give_notice(self.random.choice(workers), retired=kind == "retire")
            return
        if kind == "freeze":
            worker = self.random.choice(workers)
            self.frozen.add(worker)
            self.notice_frozen(worker)
            self.later(self.random.uniform(1, 200), self.thaw, worker)
            return
        count = {"many": len(workers) // 3, "all": len(workers)}.get(kind, 1)
        if kind == "all" and self.random.random() < 0.7:
            count = 1
        for worker in self.random.sample(workers, max(1, count)):
            self.die(worker, announced=kind != "lonely")

    def give_notice(self, worker, *, retired):
        """Let a worker wait for its rank; Dask forgets one that is retired before it ends."""
        self.closing.add(worker)
        self.event(LeaveRequested(worker))
        if retired:
            self.later(self.random.uniform(0, 1), self.forget, worker)
        self.later(0.1, self.wait_for_rank, worker, self.now + PATIENCE)

    def forget(self, worker):
        if self.workers.pop(worker, 0) != 0:
            self.event(WorkerLeft(worker, retired=True))

    def wait_for_rank(self, worker, end):
        if self.now < end and any(rank.worker == worker for rank in self.ranks.values()):
            self.later(0.1, self.wait_for_rank, worker, end)
        else:
            self.closing.discard(worker)
            self.die(worker, announced=worker in self.workers)

    def die(self, worker, *, announced):
        self.workers.pop(worker, None)
        for rank in [rank for rank in self.ranks.values() if rank.worker == worker]:
            rank.alive = False
            if rank.group is not None:
                self.later(self.random.uniform(0, 0.2), self.lose_contact, rank.group)
        if announced:
            self.later(self.random.uniform(0, 0.5), self.event, WorkerLeft(worker))
        self.later(self.random.uniform(1, 20), self.join)  # a Nanny restarts it

    def join(self):
        worker = f"w{next(self.unstarted)}"
        self.workers[worker] = None
        self.event(WorkerJoined(worker))

    def notice_frozen(self, worker):
        for rank in [rank for rank in self.ranks.values() if rank.worker == worker]:
            if rank.group is not None:  # a collective times out
                self.later(self.random.uniform(10, 12), self.lose_contact, rank.group)

    def thaw(self, worker):
        self.frozen.discard(worker)
        for rank in [rank for rank in self.ranks.values() if rank.worker == worker]:
            for act, args in self.waiting.pop(rank.name, []):
                act(*args)

    # -- actions ----------------------------------------------------------------------------------

    def StartRank(self, action):
        rank = Rank(action.rank, action.worker)
        if action.worker not in self.workers and self.random.random() < 0.5:
            self.later(0.0, self.event, RankNotStarted(action.rank))
            rank.alive = False
            return
        self.ranks[action.rank] = rank
        if action.worker not in self.workers:
            rank.alive = False  # the task waits for a worker that will never come
        elif self.random.random() < 0.002:
            self.later(0.1, self.ended.__setitem__, action.rank, TaskEnd("cancelled"))
            rank.alive = False
        elif self.random.random() < 0.0002:
            rank.alive = False  # it hangs while it starts
        else:
            self.later(self.random.uniform(1, 20), self.does, rank, self.ready)

    def CancelTask(self, action):
        self.ranks.pop(action.rank).alive = False
        self.ended.pop(action.rank, None)

    def Send(self, action):
        rank, command = self.ranks[action.rank], action.command
        if isinstance(command, Pause):
            group = rank.group
            if group is not None and group.action.segment == command.segment:
                self.later(UPDATE, self.pause, group)
        elif isinstance(command, Abandon):
            self.later(0.01, self.does, rank, self.abandon, command.generation)
        elif not isinstance(command, Stop):
            self.later(self.random.uniform(0.01, 0.5), self.does, rank, self.answer, command)

    def PutState(self, action):
        self.blobs[action.blob] = self.here

    def LoadState(self, action):
        assert "MODEL" in self.parts[action.blob]
        self.load(self.blobs.pop(action.blob))

    def NoteState(self, action):
        assert "MODEL" not in self.parts[action.blob]
        self.run = self.blobs.pop(action.blob)

    def load(self, key):
        assert key >= self.here, "the collected state is older than the one before"
        self.here = self.run = key

    def LoadReplicas(self, action):
        for blob in action.blobs:
            if blob is not None:
                assert self.blobs.pop(blob) == self.here

    def SaveCheckpoint(self, action):
        keys = {self.blobs.pop(blob) for blob in action.blobs}
        assert len(keys) == 1, "a checkpoint of different updates"
        self.load(keys.pop())

    def DropBlob(self, action):
        self.blobs.pop(action.blob, None)

    def Finish(self, action):
        for blob in action.blobs:
            self.blobs.pop(blob)
        self.result = action

    def Fail(self, action):
        known = [i.key for i in self.state.ranks.values() if i.status in ("ready", "raised")]
        assert max(known, default=self.here) <= self.here, "the best state was not kept"
        self.result = action

    def RaiseFrom(self, action):
        raise AssertionError("nobody raised anything")

    def nothing(self, action):
        """Scale nothing, wait for nothing."""

    ScaleCluster = ShrinkCluster = RestoreCluster = ResendData = AwaitTasks = nothing

    def Log(self, action):
        self.logged.append(action.event)

    # -- a fit ------------------------------------------------------------------------------------

    def fit(self, epochs):
        """Train, evaluate after each epoch, and close; return how the last call ended."""
        self.event(Surveyed(tuple(self.workers)))
        for epoch in range(epochs):
            where = {"update": self.run.update, "averagings": self.run.averagings}
            fetch = epoch + 1 == epochs or self.fetches(epoch)
            ended = self.call(TrainEpoch(epoch, epochs, fetch=fetch, patch={"of": epoch}, **where))
            if not isinstance(ended, a.Finish) or ended.outcome != "epoch":
                break
            assert self.run.update == (epoch + 1) * UPDATES
            assert not fetch or self.here == self.run
            ended_well = self.call(EvaluateBatches(7, self.run.update))
            if ended_well.outcome == "unavailable" and self.here < self.run:
                ended = self.call(Fetch())
                assert self.here.update == (epoch + 1) * UPDATES
            if self.averages and epoch % 2:
                self.call(Collect(self.here.update))
        self.call(Close())
        assert self.state.phase is Phase.CLOSED
        self.checks.closed()
        return ended
