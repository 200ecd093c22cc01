"""Which rank adds up which rows."""

import pytest
import torch

from accelerando._engine.comm.shards import Piece, divide, in_two_phases


def pieces(*shapes, whole=False):
    return [
        Piece(f"p{n}", torch.arange(float(torch.Size(shape).numel())).view(shape), whole)
        for n, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize(
    ("entries", "ranks", "two"),
    [(4095, 4, False), (4096, 4, True), (10**6, 3, False), (8191, 8, False), (8192, 8, True)],
)
def test_two_phases_need_four_ranks_and_shards_worth_encoding(entries, ranks, two):
    assert in_two_phases(pieces((entries,)), ranks) == two
    half = pieces((entries // 2,)) + pieces((entries - entries // 2,))
    assert in_two_phases(half, ranks) == two  # the message counts, not the tensor


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("whole", [False, True])
def test_every_entry_is_in_one_shard_and_shards_are_about_equal(size, whole):
    given = pieces((64, 16, 3, 3), (10, 7), (300, 64), (), (0, 5), (500,), (70, 400), whole=whole)
    shards = divide(given, size)
    assert len(shards) == size
    parts = [part for shard in shards for part in shard]
    for one in given:
        of_one = [part for part in parts if part.name == one.name]
        assert all(part.whole == whole for part in of_one)
        of_one.sort(key=lambda part: part.rows.start if part.rows else 0)
        joined = torch.cat([part.gradient for part in of_one]) if one.gradient.dim() else one[1]
        assert torch.equal(joined, one.gradient)
        assert all(part.rows is None or part.rows.shape == one.gradient.shape for part in of_one)
    entries = [sum(part.gradient.numel() for part in shard) for shard in shards]
    assert max(entries) <= sum(entries) / size + 2048
    assert min(entries) >= sum(entries) / size - 2048


def test_parts_are_views_and_stay_in_order():
    (given,) = pieces((40, 200))
    shards = divide([given], 4)
    assert [shard[0].place for shard in shards] == [
        "p0[0:10]", "p0[10:20]", "p0[20:30]", "p0[30:40]",
    ]  # fmt: skip
    shards[2][0].gradient.zero_()
    assert not given.gradient[20:30].any()
    assert given.gradient[30:].all()


def test_nothing_is_cut_off_that_is_too_small_to_be_encoded():
    given = pieces((30, 40), (2000, 2), (1, 9000), (16, 16, 3, 3))
    for shard in divide(given, 7):
        assert all(part.gradient.numel() >= 1024 for part in shard)
    assert all(part.rows is None for part in divide(pieces((30, 40)), 7)[3])  # in one piece


def test_compressed_and_whole_tensors_are_shared_out_separately():
    given = pieces((400, 40)) + pieces((400,), whole=True)
    for shard in divide(given, 4):
        assert [part.gradient.numel() for part in shard] == [4000, 100]
