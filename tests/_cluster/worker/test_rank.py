"""A rank executes commands: real mailbox, real process groups, threads instead of processes."""

import pytest
import torch

from accelerando._cluster import messages
from accelerando._engine._torch import unpack
from accelerando._engine.position import Part
from accelerando._engine.state import TrainState
from accelerando.sync import PeriodicAveraging
from tests._cluster.worker.plain import PlainBuilder, ranks, start_state, validation_of
from tests._engine.comm.ranks import MLP as Plain
from tests._engine.comm.ranks import data_of, fit_of, flat, model_of, train

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def begin(cluster, *, model=None, blob="start", **values):
    """Send the first segment, with the driver's state."""
    cluster.mailbox.put(blob, start_state(model or model_of(), **values))
    cluster.segment(source=0, blob=blob)


def parameters(rank):
    return flat(rank.trained.model.module)


def alone(epochs):
    model = model_of()
    train(fit_of(model), epochs)
    return flat(model.module)


def test_two_ranks_train_what_one_process_trains():
    with ranks(2) as cluster:
        begin(cluster)
        ended = cluster.all(messages.SegmentEnded)
        assert {e.outcome for e in ended.values()} == {"epoch"}
        assert {e.update for e in ended.values()} == {5}
        assert all(e.begun and e.generation == 1 for e in ended.values())
        torch.testing.assert_close(parameters(cluster.ranks[0]), alone(1), **EXACT)
        # The next epoch, with the same group: no state is sent.
        group = cluster.ranks[0].group
        cluster.segment(segment=2, epoch=1, records_after=5)
        ended = cluster.all(messages.SegmentEnded)
        assert {e.update for e in ended.values()} == {10}
        assert cluster.ranks[0].group is group
        for rank in cluster.ranks:
            torch.testing.assert_close(parameters(rank), alone(2), **EXACT)
            assert rank.state.records.updates.tensor()[:, 0].tolist() == [6, 7, 8, 9, 10]
        assert len(cluster.ranks[0].trained.seen) == 10  # gradients_ready in every update


def test_a_newcomer_gets_the_state_of_the_source():
    with ranks(2) as cluster:
        cluster.mailbox.put("start", start_state(model_of()))
        cluster.segment(members=[1], source=0, blob="start")
        assert cluster.next(messages.SegmentEnded).rank == "rank-1"
        cluster.segment(members=[0, 1], segment=2, generation=2, epoch=1, source=1)
        cluster.all(messages.SegmentEnded)
        for rank in cluster.ranks:
            torch.testing.assert_close(parameters(rank), alone(2), **EXACT)
            assert rank.state.position.update == 10


def test_a_state_is_sent_when_the_driver_asks_for_it():
    with ranks(1) as cluster:
        begin(cluster)
        cluster.next(messages.SegmentEnded)
        cluster.send(0, messages.SendState("state/1", ("MODEL", "POSITION", "RECORDS")))
        sent = cluster.next(messages.StateSent)
        assert (sent.blob, sent.update) == ("state/1", 5)
        found = unpack(cluster.mailbox.take("state/1"))
        assert "replicas" not in found["tensors"]
        state, model = TrainState(), model_of(seed=3)
        state.components = model.components
        state.load_state_dict(found, parts=Part.MODEL | Part.POSITION)
        assert torch.equal(flat(model.module), parameters(cluster.ranks[0]))
        assert state.position.update == 5
        assert found["tensors"]["updates"][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_patches_of_the_driver_reach_the_optimizer():
    with ranks(1) as cluster:
        cluster.mailbox.put("start", start_state(model_of()))
        patch = {"groups": [[{"lr": 0.0, "momentum": 0.0}]]}
        cluster.segment(source=0, blob="start", patch=patch, until=7)
        cluster.next(messages.SegmentEnded)
        rank = cluster.ranks[0]
        assert rank.trained.model.optimizers[0].param_groups[0]["lr"] == 0.0
        assert rank.state.position.until == 7
        assert torch.equal(parameters(rank), flat(model_of().module))


def test_validation_batches_are_evaluated_by_their_numbers():
    with ranks(1, validation=validation_of(rows=20)) as cluster:
        begin(cluster)
        cluster.next(messages.SegmentEnded)
        cluster.send(0, messages.Evaluate((0, 2), "valid/1"))
        answer = cluster.next(messages.BatchesEvaluated)
        assert answer.sendable
        found = unpack(cluster.mailbox.take("valid/1"))
        assert list(found) == ["0", "2"]
        X, y = data_of()
        expected = cluster.ranks[0].trained.evaluate((X[40:], y[40:]))
        assert found["2"][0] == expected[0]
        assert torch.equal(found["2"][1], expected[1])
        assert len(found["0"][1]) == 20


class Odd(PlainBuilder):
    """Predictions that are not tensors."""

    def build(self):
        built = super().build()
        evaluate = built.evaluate
        built.evaluate = lambda batch: (evaluate(batch)[0], "text")
        return built


def test_predictions_that_are_no_tensors_are_not_sent():
    with ranks(1, builder=Odd(), validation=validation_of()) as cluster:
        begin(cluster)
        cluster.next(messages.SegmentEnded)
        cluster.send(0, messages.Evaluate((0,), "valid/1"))
        assert not cluster.next(messages.BatchesEvaluated).sendable
        assert not cluster.mailbox.store.check(["valid/1"])


# -- errors and losses ----------------------------------------------------------------------------


class Broken(Plain):
    """Raises at the third batch."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls == 3:
            raise LookupError("the module's own trouble")
        return super().forward(x)


def test_a_users_error_is_reported_with_the_state_before_it():
    broken = {1: {"builder": PlainBuilder(module=Broken)}}
    with ranks(2, specs=broken) as cluster:
        begin(cluster)
        found = {type(event): event for event in (cluster.next(_ENDS), cluster.next(_ENDS))}
        raised = found[messages.RankRaised]
        assert (raised.rank, raised.update, raised.begun) == ("rank-1", 2, True)
        assert isinstance(cluster.ranks[1].error, LookupError)
        # The other one has lost contact, and keeps the same state.
        lost = found[messages.SegmentEnded]
        assert (lost.outcome, lost.update) == ("lost", 2)
        # It is still there to be asked.
        cluster.send(1, messages.SendState("state/1", ("MODEL", "POSITION", "RECORDS")))
        assert cluster.next(messages.StateSent).update == 2
        assert cluster.ranks[0].group is None
        assert cluster.ranks[1].group is None


_ENDS = (messages.RankRaised, messages.SegmentEnded)


def test_a_rank_that_joins_a_group_in_vain_can_be_called_back():
    with ranks(2) as cluster:
        cluster.mailbox.put("start", start_state(model_of()))
        command = messages.TrainSegment(1, 1, 0, 2, source=0, blob="start", epoch=0, until=2)
        cluster.send(0, command)  # the other member never comes
        cluster.send(0, messages.Abandon(1))
        ended = cluster.next(messages.SegmentEnded)
        assert (ended.outcome, ended.begun) == ("lost", False)
        cluster.segment(segment=2, generation=2, source=0, blob="start")
        assert {e.outcome for e in cluster.all(messages.SegmentEnded).values()} == {"epoch"}


def test_a_rank_ends_after_stop():
    with ranks(1) as cluster:
        thread = cluster._threads[0]
        assert thread.is_alive()
        cluster.send(0, messages.Stop())
        thread.join(20.0)
        assert not thread.is_alive()


# -- local SGD ------------------------------------------------------------------------------------

PERIOD = PeriodicAveraging(4)


def averaging(**settings):
    return ranks(2, strategy=PERIOD, rows=6, **settings)


def test_replicas_are_averaged_before_members_leave():
    with averaging() as cluster:
        begin(cluster, strategy=PERIOD)
        ended = cluster.all(messages.SegmentEnded)
        assert {(e.update, e.averagings, e.since) for e in ended.values()} == {(5, 1, 1)}
        replicas = [rank.state.replicas.flatten()[0][0] for rank in cluster.ranks]
        assert not torch.equal(*replicas)
        for number in range(2):
            cluster.send(number, messages.AverageNow())
        ended = cluster.all(messages.SegmentEnded)
        assert {(e.outcome, e.averagings, e.since) for e in ended.values()} == {("averaged", 2, 0)}
        after = [rank.state.replicas.flatten()[0][0] for rank in cluster.ranks]
        assert torch.equal(*after)
        torch.testing.assert_close(after[0], (replicas[0] + replicas[1]) / 2, **EXACT)


def test_a_survivor_keeps_its_steps_and_newcomers_start_from_them():
    with averaging() as cluster:
        begin(cluster, strategy=PERIOD)
        cluster.all(messages.SegmentEnded)
        kept = cluster.ranks[0].state.replicas.flatten()[0][0]
        cluster.ranks[1].state.replicas = None  # as if it had just started
        cluster.ranks[1].state.position.update = 0
        cluster.segment(segment=2, generation=2, epoch=1, source=0, patch={
            "groups": [[{"lr": 0.0}]]
        })  # fmt: skip
        cluster.all(messages.SegmentEnded)
        for rank in cluster.ranks:
            assert torch.equal(rank.state.replicas.flatten()[0][0], kept)
            assert rank.state.position.update == 10


def test_the_replica_of_one_rank_is_sent_alone():
    with averaging() as cluster:
        begin(cluster, strategy=PERIOD)
        cluster.all(messages.SegmentEnded)
        cluster.send(1, messages.SendState("state/1", ("REPLICAS",)))
        cluster.next(messages.StateSent)
        found = unpack(cluster.mailbox.take("state/1"))["tensors"]
        assert list(found) == ["replicas"]
        own = cluster.ranks[1].state.replicas.tensors[0]
        assert torch.equal(found["replicas"]["parameters"][0][0], own[0])


@pytest.mark.parametrize(("given", "expected"), [((8, 2), [3]), (None, [])])
def test_threads_are_those_of_the_command(given, expected, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr("accelerando._cluster.worker.rank.processors", lambda: 6)
    with ranks(1) as cluster:
        cluster.mailbox.put("start", start_state(model_of()))
        cluster.segment(source=0, blob="start", threads=given)
        cluster.next(messages.SegmentEnded)
    assert used == expected
