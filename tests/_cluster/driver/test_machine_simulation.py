"""The driver with 1,000 ranks and random failures, in simulated time."""

import sys
from collections import Counter

import pytest

from accelerando._cluster.driver import machine
from accelerando._cluster.driver.machine import step
from accelerando._cluster.driver.sizing import Limits, Sizing
from accelerando._cluster.driver.state import DriverState, Fail, Finish, Phase
from accelerando._cluster.messages import (
    BatchesEvaluated,
    BatchSizeChanged,
    CheckpointSent,
    Close,
    EvaluateBatches,
    Interrupt,
    ProgressSeen,
    RankReady,
    RanksAllowed,
    SegmentEnded,
    StateSent,
    Surveyed,
    Tick,
    TrainEpoch,
    UpdateTimed,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.simulated import UPDATES
from tests._cluster.driver.world import World


def check_end(world, ended, epochs):
    """Either everything was trained, or the driver gave up with the best state there was."""
    if isinstance(ended, Fail):
        assert "has killed" in ended.reason or "while a rank started" in ended.reason
    else:
        assert ended == Finish("epoch")
        assert world.here.update == epochs * UPDATES


@pytest.mark.parametrize("seed", range(20))
def test_a_large_fit_survives_random_failures(seed):
    size = 1000 if seed < 8 else 200
    averages = seed % 4 == 3
    every = 10 if seed % 3 == 0 and not averages else None
    world = World(seed, size, averages=averages, failures=6, checkpoint_every=every)
    check_end(world, world.fit(epochs=2), epochs=2)
    assert world.segments > 2, "nothing has happened"


def test_small_clusters_survive_many_failures():
    outcomes = Counter()
    for seed in range(100):
        every = 5 if seed % 2 else None
        world = World(
            seed, 1 + seed % 7, averages=seed % 3 == 2, failures=40, checkpoint_every=every
        )
        ended = world.fit(epochs=6)
        check_end(world, ended, epochs=6)
        outcomes[type(ended).__name__] += 1
    assert outcomes["Finish"] > 90, outcomes


def test_no_update_is_lost_if_workers_give_notice():
    left = 0
    for seed in range(60):
        world = World(
            seed, 1 + seed % 5, averages=seed % 3 == 2, failures=25, kinds=("notice", "retire")
        )
        assert world.fit(epochs=6) == Finish("epoch")
        assert not {"lost", "silent"} & set(world.logged), world.logged
        assert world.starts == sorted(world.starts), "a segment began before the end of another"
        assert world.made == 6 * UPDATES, "an update was made twice"
        left += world.logged.count("left")
    assert left > 100


def test_epochs_are_trained_again_if_nobody_has_the_state_after_them(monkeypatch):
    monkeypatch.setattr(machine, "_HELD_SECONDS", 1e9)
    again = 0
    for seed in range(100):
        world = World(seed, 1 + seed % 5, failures=40, fetches=lambda epoch: epoch == 3)
        check_end(world, world.fit(epochs=8), epochs=8)
        again += world.logged.count("again")
    assert again > 50


# -- work per event -------------------------------------------------------------------------------


def operations(call):
    """Return the result of a call, and the number of bytecode instructions of the driver in it."""
    count = 0

    def trace(frame, kind, argument):
        nonlocal count
        if "/_cluster/driver/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += kind == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return result, count


class Costs:
    """A fit on `size` ranks; the work and the actions of the costliest event of each kind."""

    def __init__(self, size):
        self.work, self.actions = Counter(), Counter()
        self.now = 0.0
        self.state = DriverState(Sizing(Limits(examples_per_worker=1), batch_size=size))
        self.story(size)

    def on(self, event, *, counted=True):
        self.now += 0.001
        if counted:
            (self.state, did), work = operations(lambda: step(self.state, event, self.now))
            kind = f"{type(event).__name__} in {self.state.phase.name}"
            self.work[kind] = max(self.work[kind], work)
            self.actions[kind] = max(self.actions[kind], len(did))
        else:
            self.state, _ = step(self.state, event, self.now)

    def each(self, events):
        """Feed many events of one kind; count the first and the last ones."""
        for number, event in enumerate(events):
            self.on(event, counted=number < 2 or number >= len(events) - 2)

    def story(self, size):
        workers = tuple(f"w{number}" for number in range(size))
        self.on(Surveyed(workers))
        self.on(TrainEpoch(0, 9))
        self.each([RankReady(rank) for rank in self.state.ranks])
        for event in (Tick(), ProgressSeen(3, 0.1), UpdateTimed("rank-0", size, size, 0.1)):
            self.on(event)
        self.on(CheckpointSent("rank-0", "blob", 1, 3))
        self.on(BatchSizeChanged("rank-0", 2 * size))
        self.on(WorkerJoined("new"))
        self.end("epoch", 10)
        self.on(StateSent("rank-0", self.state.requests["rank-0"].blob, 10))
        self.on(EvaluateBatches(2 * size, 10))
        asked = self.state.requests.items()
        self.each([BatchesEvaluated(rank, request.blob) for rank, request in asked])
        self.on(TrainEpoch(1, 9, update=10))
        self.on(RanksAllowed("rank-0", size // 2, 12))
        self.on(WorkerLeft("w1"))
        self.on(Surveyed(workers[: size // 3]))
        self.end("lost", 15)
        self.on(Interrupt())
        self.end("paused", 17)
        self.on(Close())
        assert self.state.phase is Phase.CLOSED

    def end(self, outcome, update):
        members = [rank for rank in self.state.members if rank in self.state.ranks]
        self.each([SegmentEnded(rank, 1, outcome, update) for rank in members])


def test_work_per_event_does_not_grow_with_the_square_of_the_ranks():
    small, large = Costs(60), Costs(240)
    assert len(large.work) > 20
    for kind, work in large.work.items():
        assert work < 6 * small.work[kind] + 500, f"{kind}: {small.work[kind]} -> {work}"
        assert large.actions[kind] <= 4 * small.actions[kind] + 10, kind


def test_frequent_events_do_not_look_at_all_ranks():
    """Each rank answers: the work for one answer must not grow with the ranks at all."""
    small, large = Costs(60), Costs(240)
    frequent = ("RankReady in GATHERING", "SegmentEnded in DRAINING", "Tick in TRAINING",
                "ProgressSeen in TRAINING")  # fmt: skip
    for kind in frequent:
        assert large.work[kind] == small.work[kind], kind
