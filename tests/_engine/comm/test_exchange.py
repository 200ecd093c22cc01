"""Messages of encoded gradients."""

import pytest
import torch

from accelerando._engine.comm.compressed import AllToAll
from accelerando._engine.comm.exchange import Exchange, is_small, pieces_of
from accelerando._engine.comm.message import header_bytes
from accelerando._engine.comm.process_group import LostContact
from accelerando._engine.comm.shards import Piece
from accelerando.compress import (
    QSGD,
    Adaptive,
    Atomo,
    ErrorFeedback,
    HalfPrecision,
    TernGrad,
    TopK,
)
from accelerando.exceptions import ClusterError, PayloadError, UnsupportedError
from tests._engine.comm.ranks import CPU, on_ranks


def gradient(seed, shape=(40, 40), dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exchange_of(compressor, group, memory=None):
    return Exchange(
        compressor, *group.shard, AllToAll(group, CPU), {} if memory is None else memory
    )


def summed(exchange, gradients, update=0, messages=1):
    """Return the sums over the ranks of some gradients, sent in some messages."""
    exchange.begin({"update": update, "epoch": update // 2}, seed=3)
    pieces = [Piece(f"module.{n}", g.clone(), is_small(g)) for n, g in enumerate(gradients)]
    for number in range(messages):
        exchange.send(pieces[number::messages])
    exchange.receive()
    return [piece.gradient for piece in pieces]


KEPT = TopK(1.0)  # everything


@pytest.mark.parametrize("messages", [1, 2])
def test_what_loses_nothing_is_the_mean_over_the_ranks(messages):
    """Small and large tensors of two dtypes; DDP multiplies the loss by the number of ranks."""
    shapes = [((40, 40), torch.float32), ((5,), torch.float32), ((3,), torch.float64)]

    def inputs(rank):
        return [gradient(10 * rank + n, *kind) for n, kind in enumerate(shapes)]

    def work(group):
        return summed(exchange_of(KEPT, group), inputs(group.shard.rank), messages=messages)

    found = on_ranks(3, work)
    for n in range(3):
        expected = sum(inputs(rank)[n] for rank in range(3)) / 3
        torch.testing.assert_close(found[0][n], expected)
        assert all(torch.equal(found[0][n], other[n]) for other in found)


def test_ranks_agree_bit_for_bit_and_draw_differently():
    def work(group):
        exchange = exchange_of(QSGD(bits=2), group)
        first = summed(exchange, [gradient(0)])[0]
        again = summed(exchange, [gradient(0)])[0]
        later = summed(exchange, [gradient(0)], update=1)[0]
        return first, again, later

    (first, again, later), others = on_ranks(2, work)
    assert torch.equal(first, others[0])
    assert torch.equal(first, again)  # an update that is repeated draws the same
    assert not torch.equal(first, later)
    # With equal draws on both ranks the error would be that of one rank.
    ((alone, _, _),) = on_ranks(1, work)
    assert (first - gradient(0)).norm() < 0.9 * (alone - gradient(0)).norm()


@pytest.mark.parametrize("wrap", [lambda codec: codec, ErrorFeedback], ids=["codec", "memory"])
def test_nothing_is_compressed_during_a_warm_up(wrap):
    def work(group):
        exchange = exchange_of(wrap(QSGD(bits=1, warmup_epochs=1)), group)
        return [summed(exchange, [gradient(0)], update=update)[0] for update in (1, 2)]

    ((warm, later), _) = on_ranks(2, work)  # epochs have two updates
    torch.testing.assert_close(warm, gradient(0))
    assert (later - gradient(0)).norm() > 0.1 * gradient(0).norm()


def test_draws_depend_on_the_seed_and_the_name():
    def work(group):
        exchange = exchange_of(QSGD(bits=2), group)
        exchange.begin({"update": 1}, seed=3)
        found = []
        for seed, name in ((3, "a"), (3, "b"), (4, "a")):
            exchange.begin({"update": 1}, seed=seed)
            piece = Piece(name, gradient(0), False)
            exchange.send([piece])
            exchange.receive()
            found.append(piece.gradient)
        return found

    ((one, other, third),) = on_ranks(1, work)
    assert not torch.equal(one, other)
    assert not torch.equal(one, third)


def test_error_feedback_is_kept_once_all_messages_have_arrived():
    codec = ErrorFeedback(TopK(0.1))

    def work(group):
        memory = {}
        exchange = exchange_of(codec, group, memory)
        total = torch.zeros(40, 40)
        for update in range(30):
            total += summed(exchange, [gradient(0)], update=update)[0]
        # What was not sent yet is the difference from what should have been.
        left = 30 * gradient(0) - total
        torch.testing.assert_close(memory["module.0"], left, rtol=1e-4, atol=1e-3)
        before = memory["module.0"].clone()
        exchange.begin({"update": 30}, seed=3)
        exchange.send([Piece("module.0", gradient(1), False)])  # and the update fails
        assert torch.equal(memory["module.0"], before)
        return total

    ((total),) = on_ranks(1, work)
    assert (total / 30 - gradient(0)).norm() < 0.5 * gradient(0).norm()


def test_what_nobody_used_is_forgotten_from_the_memory():
    """The update of a parameter that no rank used is undone: its error feedback is unchanged."""
    codec, memory = ErrorFeedback(TopK(0.1)), {}

    def work(group):
        exchange = exchange_of(codec, group, memory)
        summed(exchange, [gradient(0)])
        before = memory["module.0"].clone()
        exchange.begin({"update": 1}, seed=3)
        exchange.send([Piece("module.0", torch.zeros(40, 40), False)])
        exchange.receive()
        assert not torch.equal(memory["module.0"], before)  # without forget it would stay so
        exchange.forget(["module.0"])
        assert torch.equal(memory["module.0"], before)
        exchange.forget(["module.0"])  # forgetting again changes nothing more
        assert torch.equal(memory["module.0"], before)

    on_ranks(1, work)


def test_a_memory_survives_a_new_group():
    """It is in units of the gradient of the global batch, whatever the number of ranks."""
    codec, memory = ErrorFeedback(TopK(0.1)), {}

    def work(group):
        return summed(exchange_of(codec, group, memory), [gradient(0)])[0]

    (first,) = on_ranks(1, work)
    left = memory["module.0"]
    torch.testing.assert_close(left, gradient(0) - first)
    (second,) = on_ranks(1, work)
    assert not torch.equal(first, second)


def test_an_update_with_several_gradients_cannot_have_a_memory():
    def work(group):
        exchange = exchange_of(ErrorFeedback(TopK(0.1)), group)
        exchange.begin({"update": 0}, seed=0)
        exchange.send([Piece("w", gradient(0), False)])
        exchange.receive()
        with pytest.raises(UnsupportedError, match="evaluates gradients several times"):
            exchange.send([Piece("w", gradient(0), False)])

    on_ranks(1, work)


def test_a_rule_chooses_the_codec_of_every_update():
    seen = []

    def rule(signals):
        seen.append((signals.update, signals.epoch))
        return {"fraction": 0.1 if signals.update == 0 else 1.0}

    def work(group):
        exchange = exchange_of(Adaptive(TopK(0.5), rule), group)
        few = summed(exchange, [gradient(0)], update=0)[0]
        n_bytes = len(exchange.encode([[Piece("w", gradient(0), False)]])[0])
        everything = summed(exchange, [gradient(0)], update=2)[0]
        return few, n_bytes, everything

    ((few, n_bytes, everything),) = on_ranks(1, work)
    assert int((few != 0).sum()) == 160
    assert n_bytes < 4 * 1600
    assert torch.equal(everything, gradient(0))
    assert seen == [(0, 0), (2, 1)]


def test_after_the_first_update_messages_of_equal_length_take_one_buffer():
    def work(group):
        exchange = exchange_of(QSGD(bits=4), group)
        traffic = []
        for update in range(3):
            summed(exchange, [gradient(update), gradient(7, (9,))], update=update)
            traffic.append(exchange.traffic)
        pieces = [Piece("w", gradient(0), False), Piece("b", gradient(7, (9,)), True)]
        return traffic, header_bytes(3) + len(exchange.encode([pieces])[0])

    for traffic, length in on_ranks(3, work):
        assert [one.bytes for one in traffic] == [3 * 2 * length] * 3
        assert all(one.encode_seconds > 0 and one.decode_seconds > 0 for one in traffic)
        assert all(one.wait_seconds > 0 for one in traffic)


def test_messages_whose_length_varies_get_some_room():
    def work(group):
        exchange = exchange_of(TopK(0.01), group)
        for update in range(4):
            rank = group.shard.rank
            # The positions of the kept entries are coded: their bytes vary.
            some = gradient(update * 2 + rank) * (torch.arange(1600).view(40, 40) % 7 == rank)
            expected = [gradient(update * 2 + r) for r in range(2)]
            found = summed(exchange, [some], update=update)[0]
            assert found.shape == expected[0].shape
        return exchange._room[0, 0]

    first, second = on_ranks(2, work)
    assert first == second


def test_a_damaged_message_is_refused():
    class Damaged:
        def __init__(self, buffers, lengths):
            self.buffers = buffers

        def wait(self):
            self.buffers[0][0] = 0
            return self.buffers

    exchange = Exchange(KEPT, 0, 1, Damaged, {})
    exchange.begin({"update": 0}, seed=0)
    exchange.send([Piece("w", gradient(0), False)])
    with pytest.raises(PayloadError, match="damaged"):
        exchange.receive()


@pytest.mark.parametrize(
    ("tensor", "small"),
    [
        (torch.zeros(5000), True),
        (torch.zeros(31, 33), True),
        (torch.zeros(32, 32), False),
        (torch.zeros(64, 64, dtype=torch.complex64), True),
    ],
)
def test_what_is_small_travels_as_it_is(tensor, small):
    assert is_small(tensor) == small


def test_pieces_are_the_gradients_that_exist():
    one, other, sparse = torch.zeros(40, 40), torch.zeros(2), torch.zeros(3)
    one.grad, sparse.grad = torch.ones(40, 40), torch.ones(3).to_sparse()
    found = pieces_of([("one", one), ("other", other), ("sparse", sparse)])
    assert [(piece.name, piece.whole) for piece in found] == [("one", False), ("sparse", True)]
    assert found[1].gradient is sparse.grad
    assert not sparse.grad.is_sparse


# -- in two phases --------------------------------------------------------------------------------

SHAPES = [((100, 60), torch.float32), ((50, 40), torch.float64), ((300,), torch.float32)]


def of_rank(rank):
    return [gradient(10 * rank + n, *kind) for n, kind in enumerate(SHAPES)]


@pytest.mark.parametrize("messages", [1, 2])
def test_two_phases_of_what_loses_nothing_are_the_mean_over_the_ranks(messages):
    def work(group):
        exchange = exchange_of(KEPT, group)
        return summed(exchange, of_rank(group.shard.rank), messages=messages), exchange.traffic

    found = on_ranks(5, work)
    for n in range(3):
        expected = sum(of_rank(rank)[n] for rank in range(5)) / 5
        torch.testing.assert_close(found[0][0][n], expected)
        assert all(torch.equal(found[0][0][n], other[n]) for other, _ in found)
    for _, traffic in found:
        assert traffic.bytes == found[0][1].bytes
        assert min(traffic.encode_seconds, traffic.decode_seconds) > 0


@pytest.mark.parametrize(
    "codec",
    [QSGD(bits=4), HalfPrecision(), Atomo(share=0.3), ErrorFeedback(TopK(0.05)), TernGrad()],
    ids=repr,
)
def test_bytes_do_not_grow_with_the_ranks(codec):
    """Each rank sends about twice its message, however many there are."""

    def work(group):
        exchange = exchange_of(codec, group)
        for update in range(2):
            found = summed(exchange, [gradient(group.shard.rank, (200, 80))], update=update)
        return found[0], exchange.traffic.bytes / group.shard.size

    sent = {}
    for size in (2, 4, 8):
        found = on_ranks(size, work)
        assert all(torch.equal(found[0][0], other) for other, _ in found)
        sent[size] = found[0][1]
    assert sent[8] < 2.7 * sent[2]  # all to all: 7 times
    assert sent[4] < 2.0 * sent[2]


def test_unbiased_codecs_stay_unbiased_in_two_phases():
    def work(group):
        exchange, total = exchange_of(QSGD(bits=2), group), torch.zeros(100, 60)
        for update in range(150):
            total += summed(exchange, [of_rank(group.shard.rank)[0]], update=update)[0]
        return total / 150

    mean = on_ranks(4, work)[0]
    expected = sum(of_rank(rank)[0] for rank in range(4)) / 4
    assert (mean - expected).norm() < 0.12 * expected.norm()
    assert abs(float((mean - expected).mean())) < 3e-3


def test_both_phases_remember_what_they_left_out():
    """What was sent and what ranks remember are together all there was, when ranks leave, too."""
    memories, codec = [{} for _ in range(5)], ErrorFeedback(TopK(0.1))
    total, expected = torch.zeros(100, 60), torch.zeros(100, 60)

    def updates(group):
        rank = group.shard.rank
        exchange, sent = exchange_of(codec, group, memories[rank]), torch.zeros(100, 60)
        for update in range(5):
            sent += summed(exchange, [of_rank(rank)[0]], update=update)[0]
        return sent

    for size in (4, 5, 4, 2):  # the memories of those who leave are lost
        lost = [memories.pop() for _ in range(len(memories) - size)]
        gone = [one for memory in lost for one in memory.items() if one[1] is not None]
        memories += [{} for _ in range(size - len(memories))]
        for name, left in gone:
            rows = slice(*map(int, name.split(" rows ")[1].split(":"))) if " rows " in name else ...
            expected[rows] -= left
        total += on_ranks(size, updates)[0]
        expected += 5 * sum(of_rank(rank)[0] for rank in range(size)) / size
        assert any(" rows " in name for memory in memories for name in memory) == (size > 2)
    left = torch.zeros(100, 60)
    for memory in memories:
        left += memory["module.0"]
    torch.testing.assert_close(total + left, expected, rtol=1e-4, atol=1e-3)


def test_ranks_with_different_codecs_are_refused():
    def work(group):
        exchange = exchange_of(QSGD(bits=2 + group.shard.rank), group)
        with pytest.raises(ClusterError, match="Ranks have chosen different codecs"):
            summed(exchange, [gradient(0, (100, 60))])

    on_ranks(2, work)
    on_ranks(4, work)


def test_messages_that_were_longer_once_leave_no_room_behind():
    """After a warm-up the messages of a codec have another length, which is then a fixed one."""

    def work(group):
        exchange, sent = exchange_of(QSGD(bits=2, warmup_epochs=1), group), []
        for update in range(5):
            summed(exchange, [gradient(0, (100, 60))], update=update)
            sent.append(exchange.traffic.bytes)
        return sent

    for sent in on_ranks(4, work):
        assert sent[0] == sent[1] > 5 * sent[4]
        assert sent[4] < 1.01 * len(QSGD(bits=2).encode(gradient(0, (100, 60)))) * 6 + 6000


class Dying:
    """Messages of a rank that loses contact in its n-th message since the update began."""

    def __init__(self, send, at, when):
        self.send, self.left, self.when = send, at, when

    def __call__(self, buffers, lengths):
        self.left -= 1
        if not self.left and self.when == "sent":
            raise LostContact("Connection reset by peer")
        arrival = self.send(buffers, lengths)
        if not self.left:
            arrival.wait()
            arrival.wait = self.fail
        return arrival

    def fail(self):
        raise LostContact("Connection reset by peer")


@pytest.mark.parametrize("when", ["sent", "awaited"])
@pytest.mark.parametrize("phase", [1, 2])
def test_an_exchange_that_fails_in_either_phase_leaves_the_memory_as_it_was(phase, when):
    def work(group):
        memory, rank = {}, group.shard.rank
        exchange = exchange_of(ErrorFeedback(QSGD(bits=4)), group, memory)
        first = [summed(exchange, of_rank(rank), update=update)[0] for update in range(2)]
        before = {name: left.clone() for name, left in memory.items()}
        whole = exchange.transport
        exchange.transport = Dying(whole, phase, when)
        with pytest.raises(LostContact):
            summed(exchange, of_rank(rank), update=2)
        assert memory.keys() == before.keys()
        assert all(torch.equal(memory[name], before[name]) for name in before)
        exchange.transport = whole
        again = summed(exchange, of_rank(rank), update=2)[0]
        return first, again

    def undisturbed(group):
        exchange = exchange_of(ErrorFeedback(QSGD(bits=4)), group)
        return [
            summed(exchange, of_rank(group.shard.rank), update=update)[0] for update in range(3)
        ]

    expected = on_ranks(4, undisturbed)
    for (_, again), whole in zip(on_ranks(4, work), expected, strict=True):
        assert torch.equal(again, whole[2])  # repeated with the memory that it had
