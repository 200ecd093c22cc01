"""The payload header: what it contains, and what is refused."""

import struct

import pytest
import torch

from accelerando.compress import _payload
from accelerando.compress._payload import Reader, seal, unseal
from accelerando.exceptions import PayloadError


def test_the_header_is_the_documented_one():
    payload = seal(7, torch.float16, 3, b"body", raw=True)
    assert payload[:8] == b"ACLZ" + bytes([1, 7, 2, 1])
    assert struct.unpack("<QQ", payload[8:24]) == (3, 4)
    assert payload[_payload.HEADER_BYTES :] == b"body"
    content = unseal(payload)
    assert (content.kind, content.dtype, content.raw, content.numel) == (7, torch.float16, True, 3)
    assert bytes(content.body) == b"body"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[:10], "truncated to 10"),
        (lambda p: p[:-1], "truncated, or extended"),
        (lambda p: p + b"\0", "truncated, or extended"),
        (lambda p: b"PK34" + p[4:], "not a payload"),
        (lambda p: p[:4] + b"\2" + p[5:], "version 2"),
        (lambda p: p[:5] + b"\1" + p[6:], "checksum"),
        (lambda p: p[:-1] + b"\0", "checksum"),
    ],
)
def test_damage_is_found(change, message):
    with pytest.raises(PayloadError, match=message):
        unseal(change(seal(7, torch.float32, 1, b"body")))


def test_a_reader_raises_at_both_ends():
    reader = Reader(memoryview(b"abcd"))
    assert bytes(reader.take(3)) == b"abc"
    with pytest.raises(PayloadError, match="too early"):
        reader.take(2)
    with pytest.raises(PayloadError, match="longer"):
        reader.end()
    assert reader.array("u1", 1).tolist() == [100]
    reader.end()


@pytest.mark.parametrize("dtype", _payload.DTYPES, ids=str)
def test_tensors_come_back_from_bytes_bit_for_bit(dtype):
    tensor = torch.tensor([1.5, -0.0, float("inf"), 3e-5]).to(dtype)[::2]
    found = _payload.bytes_tensor(_payload.tensor_bytes(tensor), dtype)
    assert torch.equal(found, tensor)
    with pytest.raises(PayloadError, match="inside a number"):
        _payload.bytes_tensor(b"\0" * (dtype.itemsize + 1), dtype)


def test_half_precision_is_computed_in_single_precision():
    assert _payload.working_dtype(torch.bfloat16) == torch.float32
    assert _payload.working_dtype(torch.float64) == torch.float64
    assert (_payload.stored(torch.float64), _payload.stored(torch.float16)) == ("<f8", "<f4")
