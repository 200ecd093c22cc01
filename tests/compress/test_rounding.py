"""Random rounding: the arithmetic behind QSGD, TernGrad and LqQuantize."""

import math
import struct

import pytest
import torch

from accelerando.compress import _payload, _rounding, decode
from accelerando.exceptions import PayloadError


@pytest.mark.parametrize("n", [1, 7, 512, 40_000, 70_001])
@pytest.mark.parametrize("bucket", [1, 7, 512, 33_000])
def test_pieces_cover_every_entry_once_and_none_crosses_a_bucket_boundary(n, bucket):
    end = 0
    for start, stop, first, buckets in _rounding._pieces(n, min(bucket, n)):
        assert start == end
        assert stop - start <= max(_rounding._PIECE, 1)
        assert (stop - start) % buckets == 0
        assert first == start // bucket
        assert (stop - 1) // bucket == first + buckets - 1
        end = stop
    assert end == n


@pytest.mark.parametrize("q", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_scales_are_norms_of_buckets_without_overflow(q):
    flat = torch.tensor([3.0, -4.0, 1.0, 0.0, 5.0], dtype=torch.float64)
    wanted = [torch.linalg.vector_norm(part, ord=q) for part in flat.split(2)]
    torch.testing.assert_close(_rounding._scales(flat, 2, q), torch.stack(wanted))
    huge = torch.tensor([3e38, -1.0])
    assert float(_rounding._scales(huge, 2, q)[0]) >= 3e38
    assert float(_rounding._scales(huge.double(), 2, 2.0)[0]) == pytest.approx(3e38)


def test_draws_are_uniform_in_steps_of_2_to_the_minus_24():
    draws = _rounding._uniform((20_000,), torch.float32, torch.Generator().manual_seed(0))
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    assert torch.equal((draws * 2**24).round(), draws * 2**24)
    assert abs(float(draws.mean()) - 0.5) < 0.01  # five standard errors


def test_a_scale_that_is_too_large_or_subnormal_is_not_encoded():
    tensor = torch.tensor([1.0, 1.0])
    assert _rounding.encode(tensor, 1.2, None, 1, 2.0, None) is None
    assert _rounding.encode(tensor * 1e-42, 1e38, None, 1, 2.0, None) is None
    assert _rounding.encode(tensor, 1.5, None, 1, 2.0, None) is not None


def body(levels, coding, bucket):
    return struct.pack("<BBQ", levels, coding, bucket) + struct.pack("<f", 1.0) + b"\0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (body(1, 1, 3), r"QSGD\(coding='elias'\), which was removed"),
        (body(1, 2, 3), "settings are not valid"),
        (body(0, 0, 3), "settings are not valid"),
        (body(1, 0, 0), "settings are not valid"),
    ],
)
def test_other_codings_are_refused_with_a_sentence(content, message):
    with pytest.raises(PayloadError, match=message):
        decode(_payload.seal(_rounding.KIND, torch.float32, 3, content), (3,))
