"""A driver's state machine in the hands of a test: feed it events, read its actions."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass

import pytest

from accelerando._cluster.driver.machine import step
from accelerando._cluster.driver.sizing import Limits, Sizing
from accelerando._cluster.driver.state import (
    Action,
    DriverState,
    Fail,
    Finish,
    Log,
    Phase,
    Send,
    StartSegment,
)
from accelerando._cluster.messages import (
    Event,
    RankReady,
    SegmentEnded,
    StateSent,
    Surveyed,
    TrainEpoch,
)

WORKERS = ("a", "b", "c", "d", "e", "f")


class Fit:
    """A fit on workers ``a``, ``b``, ...; 16 rows per rank."""

    def __init__(self, ranks=3, workers=None, *, averages=False, limits=None, **settings):
        limits = {"examples_per_worker": 16, "averages": averages, **(limits or {})}
        if averages:
            limits.setdefault("max_workers", ranks)
        self.now = 0.0
        self.all: list[Action] = []
        self.state = DriverState(
            Sizing(Limits(**limits), batch_size=16 * ranks), averages=averages, **settings
        )
        self.on(Surveyed(WORKERS[: ranks if workers is None else workers]), after=0.0)

    def on(self, event: Event, after: float = 0.01) -> list[str]:
        """Let time pass, then let something happen; return what the driver does, in short."""
        self.now += after
        before = copy.deepcopy(self.state)
        state, actions = step(self.state, event, self.now)
        assert self.state == before, "step changed its argument"
        self.state = state
        self.all += actions
        return [short(action) for action in actions]

    @property
    def phase(self) -> Phase:
        return self.state.phase

    def epoch(self, number=0, until=2, **position) -> list[str]:
        return self.on(TrainEpoch(number, until, **position))

    def start(self, **position) -> Fit:
        """Begin an epoch, and a segment in which all ranks train."""
        self.epoch(**position)
        for rank in list(self.state.ranks):
            self.on(RankReady(rank))
        assert self.phase is Phase.TRAINING
        return self

    def end(self, outcome="epoch", update=10, ranks=None, **where) -> list[str]:
        """Let ranks end the segment; return what the driver does after the last one."""
        did = []
        for rank in self.state.members if ranks is None else ranks:
            did = self.on(SegmentEnded(rank, self.state.generation, outcome, update, **where))
        return did

    def collected(self, **where) -> list[str]:
        """Let the ranks that were asked send their states."""
        did = []
        for rank, request in list(self.state.requests.items()):
            key = self.state.ranks[rank].key
            where = {"update": key.update, "averagings": key.averagings, **where}
            did = self.on(StateSent(rank, request.blob, **where))
        return did

    def between_epochs(self, **where) -> Fit:
        """Train one epoch to its end."""
        self.start()
        self.end(**where)
        self.collected()
        assert self.phase is Phase.IDLE
        return self

    def statuses(self) -> dict[str, str]:
        return {rank: info.status for rank, info in self.state.ranks.items()}


def short(action: Action) -> str:
    """Return an action as a few words."""
    if isinstance(action, Log):
        return f"log {action.event}"
    if isinstance(action, Send):
        return " ".join([f"{action.rank} <- {type(action.command).__name__}", *said(action)])
    if isinstance(action, StartSegment):
        given = f"source={action.source} blob={action.blob}"
        return f"segment {action.segment} generation {action.generation}: " + " ".join(
            [*action.members, given]
        )
    if isinstance(action, Fail):
        return "Fail"
    if isinstance(action, Finish):
        return " ".join(["Finish", action.outcome, *action.blobs])
    values = [getattr(action, f.name) for f in fields(action)]
    return " ".join([type(action).__name__, *(str(value) for value in values)])


def said(action: Send) -> list[str]:
    command = action.command
    assert is_dataclass(command)
    return [f"{f.name}={getattr(command, f.name)}" for f in fields(command)]


def texts(fit: Fit, event: str) -> list[str]:
    """Return the lines of one kind in the log."""
    return [a.text for a in fit.all if isinstance(a, Log) and a.event == event]


def segments(fit: Fit) -> list[StartSegment]:
    """Return the segments so far."""
    return [action for action in fit.all if isinstance(action, StartSegment)]


def transitions(rows):
    """Parametrize a test with rows: given, event, seconds later, phase after, actions."""
    ids = [f"{row[0].__name__}-{type(row[1]).__name__}" for row in rows]
    return pytest.mark.parametrize("row", rows, ids=ids)


def check_transition(row) -> None:
    given, event, after, phase, actions = row
    fit = given()
    assert fit.on(event, after) == actions
    assert fit.phase is phase


def asked(fit: Fit) -> dict[str, str]:
    """Return the blobs that are awaited, by rank."""
    return {rank: request.blob for rank, request in fit.state.requests.items()}


def send(fit: Fit, rank: str) -> list[str]:
    """Let a rank send the state that it was asked for."""
    key = fit.state.ranks[rank].key
    return fit.on(StateSent(rank, asked(fit)[rank], key.update, key.averagings))
