"""Invariants of the driver, checked after every step of a simulated world."""

from __future__ import annotations

from accelerando._cluster.driver.state import Phase
from accelerando._cluster.messages import Abandon, Pause, Stop


class Checks:
    """Invariants of the driver, checked after every step."""

    def __init__(self, world):
        self.world = world
        self.started: set[str] = set()
        self.on_worker: dict[str, str] = {}
        self.stopped: set[str] = set()
        self.done: set[str] = set()
        self.members: dict[int, tuple] = {}
        self.paused: set[int] = set()
        self.abandoned: dict[int, set] = {}
        self.segments: set[int] = set()

    def step(self, before, event, actions):
        state = self.world.state
        self.waits(state)
        for action in actions:
            check = getattr(self, type(action).__name__, None)
            if check is not None:
                check(action, before, state)
        if len(actions) > 20:
            return  # counting is for the frequent events
        assert sum(state.counts.values()) == len(state.ranks)

    def waits(self, state):
        bounded = (Phase.IDLE, Phase.CLOSED, Phase.TRAINING, Phase.GATHERING)
        assert state.phase in bounded or state.deadline is not None, "waits without a timer"

    def StartRank(self, action, before, after):
        assert action.rank not in self.started
        self.started.add(action.rank)
        other = self.on_worker.get(action.worker)
        assert other not in before.ranks or other not in after.ranks, "a worker has two ranks"
        self.on_worker[action.worker] = action.rank

    def CancelTask(self, action, before, after):
        assert action.rank not in self.done, "cancelled twice"
        assert action.rank not in after.ranks
        self.done.add(action.rank)

    def Send(self, action, before, after):
        command, rank = action.command, action.rank
        assert rank in before.ranks or rank in after.ranks, "unknown rank"
        if isinstance(command, Stop):
            assert rank not in self.stopped, "stopped twice"
            self.stopped.add(rank)
            return
        info = after.ranks.get(rank) or before.ranks[rank]
        assert info.status != "silent", f"{type(command).__name__} to a silent rank"
        if isinstance(command, Pause):
            assert command.segment not in self.paused
            assert rank == after.members[0]
            self.paused.add(command.segment)
        if isinstance(command, Abandon):
            sent = self.abandoned.setdefault(command.generation, set())
            assert rank not in sent
            sent.add(rank)

    def StartSegment(self, action, before, after):
        assert action.segment not in self.segments
        self.segments.add(action.segment)
        known = self.members.setdefault(action.generation, action.members)
        assert known == action.members, "the members of a generation changed"
        assert len(set(action.members)) == len(action.members)
        keys = [self.world.ranks[rank].key for rank in action.members]
        if action.blob is None:
            assert keys[0] == max(keys), "the source has not the newest state"
            assert keys[0] >= self.world.here, "the driver had a newer state"

    def closed(self):
        world = self.world
        assert self.stopped | self.done == self.started | self.stopped
        assert not world.state.ranks
        alive = {rank.name for rank in world.ranks.values()}
        left = {blob for blob in world.blobs if blob.rpartition("/")[2] not in alive}
        assert not {blob for blob in left if not blob.startswith("checkpoint/")}, left
