"""The memory of error feedback in both phases."""

import torch

from accelerando._engine.comm.feedback_memory import FeedbackMemory, second_name
from accelerando._engine.comm.shards import Piece, divide
from accelerando.compress import ErrorFeedback, TopK

CODEC = ErrorFeedback(TopK(0.1))
DRAW = torch.Generator()


def weight(value=1.0, rows=64):
    return Piece("w", torch.full((rows, 64), value) * torch.arange(1.0, 65.0), False)


def test_parts_of_a_parameter_share_one_memory():
    memory = {"w": torch.ones(64, 64)}
    feedback = FeedbackMemory(memory)
    parts = [part for shard in divide([weight()], 4) for part in shard]
    assert len(parts) == 4
    sent = torch.cat([
        CODEC.decode(feedback.encode(CODEC, part, part.gradient, DRAW), part.gradient.shape)
        for part in parts
    ])  # fmt: skip
    assert torch.equal(memory["w"], torch.ones(64, 64))  # nothing has arrived yet
    feedback.keep()
    torch.testing.assert_close(memory["w"], weight().gradient + 1.0 - sent)


def test_an_update_that_fails_changes_nothing():
    memory = {}
    feedback = FeedbackMemory(memory)
    feedback.encode(CODEC, weight(), weight().gradient, DRAW)
    feedback.encode_sum(CODEC, weight(), DRAW)
    feedback.begin()
    feedback.keep()
    assert memory == {}


def test_the_second_phase_remembers_what_it_left_out_of_the_sum():
    memory, piece = {}, weight()
    feedback = FeedbackMemory(memory)
    total = torch.zeros(64, 64)
    for _ in range(3):
        feedback.begin()
        total += CODEC.decode(feedback.encode_sum(CODEC, piece, DRAW), (64, 64))
        feedback.keep()
    torch.testing.assert_close(memory[second_name(piece)], 3 * piece.gradient - total)


def test_rows_that_another_rank_adds_up_are_handed_back():
    """Nothing is lost when ranks join or leave: what is left is sent with the own gradients."""
    memory = {"w": torch.ones(64, 64)}
    feedback = FeedbackMemory(memory)
    pieces = [weight()]
    four, eight = divide(pieces, 4), divide(pieces, 2)
    feedback.encode_sum(CODEC, four[1][0], DRAW)
    feedback.keep()
    left = memory[second_name(four[1][0])].clone()
    assert left.any()
    feedback.hand_back(four[1], four[1])  # still the owner
    assert second_name(four[1][0]) in memory
    feedback.hand_back(eight[0] + eight[1], eight[1])
    assert list(memory) == ["w"]
    expected = torch.ones(64, 64)
    expected[16:32] += left
    assert torch.equal(memory["w"], expected)


def test_what_is_handed_back_does_not_need_a_first_memory_nor_a_shard():
    memory = {}
    feedback = FeedbackMemory(memory)
    part = divide([weight()], 4)[3][0]
    feedback.encode_sum(CODEC, part, DRAW)
    feedback.keep()
    feedback.hand_back([Piece("other", torch.zeros(2, 2), False)], [])  # in another message
    assert "w" not in memory
    left = memory[second_name(part)]
    feedback.hand_back([weight()], [])
    assert torch.equal(memory["w"][48:], left)
    assert not memory["w"][:48].any()


def test_an_unused_parameter_keeps_both_memories():
    memory = {"w": torch.ones(64, 64), "v": torch.ones(64, 64)}
    feedback = FeedbackMemory(memory)
    for name in ("w", "v"):
        piece = weight()._replace(name=name)
        feedback.encode(CODEC, piece, piece.gradient, DRAW)
        feedback.encode_sum(CODEC, piece, DRAW)
    feedback.keep()
    feedback.forget(["w"])
    assert torch.equal(memory["w"], torch.ones(64, 64))
    assert memory["w rows 0:64"] is None
    assert memory["v rows 0:64"] is not None
    assert not torch.equal(memory["v"], torch.ones(64, 64))
