"""The pieces of training on a cluster, without a cluster."""

import json
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.batch_size import AdaDamp, Constant, GeoDamp
from accelerando.train.cluster.board import Address, Board, open_store
from accelerando.train.cluster.forming import form
from accelerando.train.cluster.group import Group
from accelerando.train.cluster.packet import pack, pack_state, take_up, unpack
from accelerando.train.cluster.reins import usual_seconds
from accelerando.train.cluster.roster import (
    Knee,
    Threads,
    first_batch,
    planned,
    ranks_for,
    threads_for,
)
from accelerando.train.cluster.scaling import Scaling
from accelerando.train.data import MemoryFeed
from accelerando.train.feed import Part
from accelerando.train.loader import LoaderFeed
from accelerando.train.order import epoch_order
from accelerando.train.run import Run
from tests.nets import Items, classifier, parameters_of


@pytest.fixture(scope="module")
def board():
    store = open_store("127.0.0.1")
    return Board(Address("127.0.0.1", store.port), store)


def test_the_board_listens_on_one_address_only(board):
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table]
    port = f"{board.address.port:04X}"
    listening = [row[1] for row in lines[1:] if row[1].endswith(":" + port) and row[3] == "0A"]
    assert listening == [f"0100007F:{port}"]


def test_notes_arrive_in_order_and_commands_once(board):
    notes = board.listen()
    for number in range(20):
        board.drop({"kind": "test", "number": number})
    assert [notes.next(10.0)["number"] for _ in range(20)] == list(range(20))
    assert notes.next(0.0) is None
    notes.close()
    assert not any(t.name == "accelerando-notes" for t in threading.enumerate())
    assert board.commanded("here", 0) is None
    board.command("here", 0, {"kind": "go"})
    assert board.commanded("here", 0) == {"kind": "go"}
    assert board.commanded("here", 0) is None


@pytest.mark.parametrize("size", [0, 1, 4 << 20, (9 << 20) + 3])
def test_states_of_any_length_pass(board, size):
    content = np.random.default_rng(0).bytes(size)
    board.put("state", content)
    assert board.take("state") == content
    assert not board.flag("state")


def test_a_closed_board_is_an_error_at_once():
    with pytest.raises(OSError, match="refused"):
        Board(Address("127.0.0.1", 9))


def test_a_packed_state_carries_everything(digits):
    net = classifier(optimizer__momentum=0.9, max_epochs=1).fit(*digits)
    other = classifier(optimizer__momentum=0.9).initialize()
    next(net.module_.parameters()).requires_grad_(False)
    records = take_up(other, pack_state(net))
    assert torch.equal(parameters_of(net), parameters_of(other))
    assert not next(other.module_.parameters()).requires_grad
    assert other.run_.update == net.run_.update
    assert len(records) == net.run_.update
    buffers = [s["momentum_buffer"] for s in other.optimizer_.state.values()]
    assert all(torch.isfinite(b).all() for b in buffers)
    assert buffers


def test_unpacking_runs_no_code():
    class Evil:
        def __reduce__(self):
            return (print, ("code ran",))

    with pytest.raises(Exception, match="Weights only"):
        unpack(pack({"evil": Evil()}))


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 50),
    ranks=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    cursor=st.integers(0, 20),
    loader=st.booleans(),
)
def test_ranks_share_every_batch_without_gap_or_overlap(n, ranks, sizes, cursor, loader):
    X, y = torch.arange(n), torch.arange(n)
    make = (
        (lambda: LoaderFeed(Items(X, y), {}, chunk=3))
        if loader
        else (lambda: MemoryFeed([X, y], None))
    )
    streams = [make().epoch(3, 1, cursor, Part(rank, ranks)) for rank in range(ranks)]
    order = epoch_order(3, 1, n)[cursor:]
    for size in sizes:
        batches = [stream.take(size) for stream in streams]
        if batches[0] is None:
            assert all(batch is None for batch in batches)
            assert not len(order)
            return
        assert {batch.size for batch in batches} == {min(size, len(order))}
        held = [row for b in batches for row in b.data[0].tolist()[: b.held]]
        assert sorted(held) == sorted(order[:size].tolist())
        assert all(len(batch.data[0]) >= 1 for batch in batches)
        order = order[size:]


@given(st.integers(1, 10**6), st.integers(1, 1000), st.integers(1, 50), st.integers(1, 50))
def test_ranks_stay_within_their_bounds(batch, per_worker, fewest, most):
    ranks = ranks_for(batch, per_worker, min(fewest, most), max(fewest, most))
    assert min(fewest, most) <= ranks <= max(fewest, most)


def test_schedules_are_known_ahead():
    run = Run(n_examples=1000)
    geo = GeoDamp(initial=10, delay=2, factor=5)
    assert [planned(geo, run, None, epoch) for epoch in range(5)] == [10, 10, 50, 50, 250]
    assert planned(AdaDamp(initial=10), run, None, 1) == 0
    assert first_batch(AdaDamp(initial=10), run, None) == 10
    assert first_batch(Constant(64), run, 32) == 32


def test_the_knee_goes_up_while_it_pays():
    knee = Knee()
    seconds = {1: 1.0, 2: 0.6, 4: 0.58, 8: 0.2}
    ranks = 1
    for _ in range(6):
        knee.observe(ranks, 128, seconds[ranks])
        ranks = knee.advise(ranks, wanted=8)
    assert ranks == knee.most == 2
    knee.observe(2, 256, 1.2)  # a batch twice as large is worth another try
    assert knee.advise(2, wanted=8) == 4


class FakeCluster:
    def __init__(self, supports=True):
        self._supports_scaling = supports
        self.asked = []

    def scale(self, n):
        self.asked.append(n)


def test_scaling_asks_once_and_gives_back():
    cluster = FakeCluster()
    scaling = Scaling(cluster, most=4)
    for _ in range(3):
        scaling.ask(wanted=4, present=2, missing=2)
    scaling.shrink(3)
    scaling.restore()
    assert cluster.asked == [4, 3, 2]


@pytest.mark.parametrize(
    ("cluster", "most"), [(None, 4), (FakeCluster(False), 4), (FakeCluster(), None)]
)
def test_who_cannot_scale_is_not_asked(cluster, most):
    scaling = Scaling(cluster, most)
    scaling.ask(wanted=4, present=2, missing=2)
    scaling.shrink(1)
    scaling.restore()
    assert cluster is None or cluster.asked == []


def test_a_checkpoint_lets_a_new_estimator_go_on(digits, tmp_path):
    settings = {"checkpoint": tmp_path / "run", "checkpoint_every": 3, "max_epochs": 4}
    whole = classifier(max_epochs=4).fit(*digits)

    first = classifier(**settings)
    calls = []
    original = type(first)._write_checkpoint

    def stopping(self):
        original(self)
        calls.append(self.run_.update)
        if self.run_.update == 12:
            raise RuntimeError("power cut")

    type(first)._write_checkpoint = stopping
    try:
        with pytest.raises(RuntimeError, match="power cut"):
            first.fit(*digits)
    finally:
        type(first)._write_checkpoint = original
    assert calls[:3] == [3, 6, 8]
    second = classifier(**settings).fit(*digits)
    assert torch.equal(parameters_of(second), parameters_of(whole))
    assert second.run_.update == whole.run_.update
    third = classifier(**settings).fit(*digits)  # a finished run is not gone on with
    assert torch.equal(parameters_of(third), parameters_of(whole))
    content = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert json.loads(content["json"])["run"]["epoch"] == 4


def test_a_rank_that_is_alone_pauses_when_it_wants_to(digits):
    X, y = torch.from_numpy(digits[0][:8]), torch.from_numpy(digits[1][:8])
    net = classifier(max_epochs=1).fit(*digits)
    here = torch.device("cpu")
    processes = form(dist.HashStore(), 0, 1, seconds=5.0, address="127.0.0.1", device=here)
    group = Group(net, processes, unused=False)
    group.pause = True
    group.begin_update(0, 0, len(X))
    loss = net.criterion_(group.forward(net, X, {}, plain=True), y)
    assert not group.paused
    group.backward(loss, 1.0, last=True)
    assert group.paused
    group.close()


class PlannedCluster:
    """What was told to have so many workers."""

    def __init__(self, n_workers):
        self.plan = set(range(n_workers))
        self.told = []

    def scale(self, n):
        self.plan = set(range(n))
        self.told.append(n)


def test_a_cluster_whose_workers_are_being_restarted_stays_as_large_as_it_was():
    cluster = PlannedCluster(4)
    scaling = Scaling(cluster, most=3)
    scaling.ask(wanted=3, present=0, missing=3)  # all of them were killed a moment ago
    scaling.restore()
    assert set(cluster.told) == {4}
    scaling.ask(wanted=6, present=4, missing=2)
    scaling.shrink(5)
    scaling.ask(wanted=6, present=5, missing=1)
    scaling.restore()
    assert cluster.told[2:] == [6, 5, 6, 4]


# -- threads and speed -----------------------------------------------------------------------------


def test_ranks_of_a_machine_divide_the_threads_of_its_workers():
    given = {"tcp://a:1": 2, "tcp://a:2": 2, "tcp://b:1": 1, "tcp://b:2": 1}
    workers = {address: {"nthreads": threads} for address, threads in given.items()}
    places = {"rank-0": "tcp://a:1", "rank-1": "tcp://a:2", "rank-2": "tcp://b:1"}
    assert threads_for(places, workers) == {
        "rank-0": Threads(4, 2),
        "rank-1": Threads(4, 2),
        "rank-2": Threads(2, 1),
    }
    assert threads_for(places, {}) == {}


@pytest.mark.parametrize(
    ("given", "ranks", "processors", "each"),
    [(4, 1, 2, 2), (4, 2, 2, 1), (4, 4, 2, 1), (8, 2, 16, 4), (1, 1, 16, 1)],
)
def test_threads_at_work_are_not_more_than_processors(given, ranks, processors, each):
    assert Threads(given, ranks).each(processors) == each


@pytest.mark.parametrize("period", [1, 2, 4])
def test_a_slow_start_and_a_stall_do_not_count_as_usual(period):
    turn = [1.0] * (period - 1) + [2.0]
    pace = [50.0, 50.0, *(turn * 18)[:18]]
    pace[6] = 30.0
    assert usual_seconds(pace, period) == pytest.approx(sum(turn) / period)


def test_meetings_that_are_rare_count_all_the_same():
    assert usual_seconds([9.0, 9.0, *[1.0] * 9, 10.0, *[1.0] * 8], period=10) == 1.5
