"""Messages of encoded gradients."""

import pytest
import torch

from accelerando._engine.comm.compressed import AllGather
from accelerando._engine.comm.exchange import Exchange, Piece, is_small, pieces_of
from accelerando.compress import QSGD, Adaptive, ErrorFeedback, TopK
from accelerando.exceptions import PayloadError, UnsupportedError
from tests._engine.comm.ranks import CPU, on_ranks


def gradient(seed, shape=(40, 40), dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exchange_of(compressor, group, memory=None):
    gather = AllGather(group, CPU)
    return Exchange(compressor, *group.shard, gather, {} if memory is None else memory)


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
        n_bytes = len(exchange._message([Piece("w", gradient(0), False)]))
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
        message = exchange._message(
            [Piece("w", gradient(0), False), Piece("b", gradient(7, (9,)), True)]
        )
        return traffic, len(message)

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
        return exchange._room[0]

    first, second = on_ranks(2, work)
    assert first == second


def test_a_damaged_message_is_refused():
    class Damaged:
        def __init__(self, buffer):
            self.buffer = buffer

        def wait(self):
            self.buffer[0] = 0
            return [self.buffer]

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
