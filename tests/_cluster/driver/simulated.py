"""Ranks of a simulated world: process groups that form, train, and lose members."""

from __future__ import annotations

from dataclasses import dataclass, field

from accelerando._cluster.driver import state as a
from accelerando._cluster.driver.state import Key
from accelerando._cluster.messages import (
    AverageNow,
    BatchesEvaluated,
    CheckpointSent,
    Evaluate,
    ProgressSeen,
    RankReady,
    SegmentEnded,
    SendState,
    StateSent,
)

UPDATE = 0.5  # seconds of an update
UPDATES = 40  # of an epoch
PERIOD = 8  # updates between two averagings, under local SGD


@dataclass
class Rank:
    """A rank in the simulated world."""

    name: str
    worker: str
    key: Key = a.NO_STATE
    since: int = 0
    alive: bool = True
    group: Group | None = None


@dataclass
class Group:
    """Ranks that train a segment together."""

    action: a.StartSegment
    members: list[Rank]
    start: Key = a.NO_UPDATE
    began: float | None = None  # None until all members joined
    over: bool = False
    reported: set[str] = field(default_factory=set)


class SimulatedRanks:
    """What ranks do; a part of :class:`tests._cluster.driver.world.World`."""

    # -- ranks ------------------------------------------------------------------------------------

    def does(self, rank, act, *args):
        """Let a rank act, unless it is dead; a frozen one acts when it thaws."""
        if rank.alive and rank.worker in self.frozen:
            self.waiting.setdefault(rank.name, []).append((self.does, (rank, act, *args)))
        elif rank.alive:
            act(rank, *args)

    def ready(self, rank):
        self.event(RankReady(rank.name))

    def end(self, rank, outcome, key, *, begun=True):
        if rank.group is None:
            return
        rank.group = None
        if begun:
            rank.key = key
            rank.since = key.update - key.averagings * PERIOD if self.averages else 0
        self.event(
            SegmentEnded(
                rank.name,
                self.state.generation,
                outcome,
                max(0, rank.key.update),
                rank.key.averagings,
                rank.since,
                begun=begun,
            )
        )

    # -- process groups ---------------------------------------------------------------------------

    def StartSegment(self, action):
        members = [self.ranks[name] for name in action.members]
        group = Group(action, members)
        self.segments += 1
        for rank in members:
            rank.group = group
        self.later(self.random.uniform(0.05, 0.5), self.form, group)
        self.later(60.0, self.give_up, group)

    def form(self, group):
        """Begin, if everybody is there; otherwise some wait until they are told to give up."""
        if group.over or any(not r.alive or r.worker in self.frozen for r in group.members):
            return
        action, first = group.action, group.members[0]
        if action.blob is not None:
            group.start = self.blobs.pop(action.blob)
        else:
            group.start = first.key
        assert group.start != a.NO_STATE
        self.starts.append(group.start)
        group.began = self.now
        for rank in group.members:
            if action.source is None:
                assert rank.key == group.start, "members differ, and nobody gives its state"
            rank.key = group.start
        left = (action.epoch + 1) * UPDATES - group.start.update
        assert 0 <= left <= UPDATES, "trained past the end of the epoch, or left updates out"
        assert action.patch == {"of": action.epoch}, "the changes of another epoch"
        self.later(left * UPDATE + 1e-9, self.finish, group, "epoch")
        self.progress(group)
        if self.checkpoint_every is not None:
            self.checkpoint(group)

    def progress(self, group):
        if not group.over and group.members[0].alive:
            self.later(4 * UPDATE, self.progress, group)
            self.event(ProgressSeen(self.key(group).update, UPDATE))

    def key(self, group):
        done = 0 if group.began is None else int((self.now - group.began) / UPDATE + 1e-6)
        update = min(group.start.update + done, (group.action.epoch + 1) * UPDATES)
        averagings = max(group.start.averagings, update // PERIOD) if self.averages else 0
        return Key(averagings, update)

    def finish(self, group, outcome):
        """End a segment in which nobody was lost."""
        if group.over:
            return
        if any(not rank.alive or rank.worker in self.frozen for rank in group.members):
            self.later(0.5, self.lose_contact, group)
            return
        group.over = True
        key = self.key(group)
        self.made += key.update - group.start.update
        for rank in group.members:
            self.later(self.random.uniform(0, 0.1), self.does, rank, self.end, outcome, key)

    def lose_contact(self, group):
        """Members that trained notice a loss; those that are still joining do not."""
        if group.over or group.began is None:
            return
        group.over = True
        key = self.key(group)
        behind = Key(key.averagings, max(group.start.update, key.update - 1))
        if self.averages:
            behind = key
        for rank in group.members:
            at = key if rank is group.members[0] or self.random.random() < 0.9 else behind
            delay = self.random.uniform(0, 1.5)
            self.later(delay, self.does, rank, self.end, "lost", at)

    def give_up(self, group):
        if group.began is None and not group.over:
            group.over = True
            for rank in group.members:
                self.later(0.0, self.does, rank, self.leave, group)

    def leave(self, rank, group):
        if rank.group is group:
            self.end(rank, "lost", rank.key, begun=False)

    def checkpoint(self, group):
        if group.over or not group.members[0].alive:
            return
        self.later(self.checkpoint_every * UPDATE, self.checkpoint, group)
        key = self.key(group)
        if self.now <= group.began:
            return
        for rank in group.members if self.averages else group.members[:1]:
            self.later(self.random.uniform(0, 0.01), self.does, rank, self.send_part, group, key)

    def send_part(self, rank, group, key):
        blob = f"checkpoint/{key.update}/{rank.name}"
        self.blobs[blob] = key
        segment = group.action.segment
        self.event(CheckpointSent(rank.name, blob, segment, key.update, key.averagings))

    def pause(self, group):
        if group.began is None and not group.over:
            self.later(UPDATE, self.pause, group)
        else:
            self.finish(group, "paused")

    def abandon(self, rank, generation):
        group = rank.group
        if group is not None and group.action.generation == generation and group.began is None:
            group.over = True
            self.end(rank, "lost", rank.key, begun=False)

    def answer(self, rank, command):
        if isinstance(command, SendState):
            self.blobs[command.blob] = rank.key
            self.parts[command.blob] = command.parts
            self.event(StateSent(rank.name, command.blob, rank.key.update, rank.key.averagings))
        elif isinstance(command, Evaluate):
            request = self.state.requests.get(rank.name)
            awaited = request is not None and request.blob == command.blob
            # The answer of a rank that was frozen for long is dropped.
            assert not awaited or rank.key.update == self.run.update, "it evaluates another model"
            self.blobs[command.blob] = rank.key
            self.event(BatchesEvaluated(rank.name, command.blob))
        elif isinstance(command, AverageNow):
            rank.key = Key(rank.key.averagings + 1, rank.key.update)
            rank.since = 0
            where = (rank.key.update, rank.key.averagings, 0)
            self.event(SegmentEnded(rank.name, self.state.generation, "averaged", *where))
