"""Decoders in processes of their own: pictures that crash, hang or bomb them."""

import struct
import zlib

import pytest

from accelerando.crowd.experiment import decoding
from accelerando.crowd.experiment.decoding import decode_pictures
from tests.crowd.experiment.pictures import WHERE, exif, saved, scene

MANY = 50_000_000


def bomb(side=60_000):
    """A small file that declares billions of pixels."""

    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_pictures_are_decoded_and_lose_where_they_were_taken():
    photo = saved(scene(), "HEIF", exif=exif())
    plain = saved(scene(), "JPEG", exif=exif())
    assert WHERE.encode() in photo
    found = decode_pictures(
        {
            "photo": ("image/heic", photo),
            "plain": ("image/jpeg", plain),
            "bomb": ("image/png", bomb()),
            "cut": ("image/heic", photo[:300]),
        },
        MANY,
    )
    assert {name: one.type for name, one in found.items() if not one.reason} == {
        "photo": "image/jpeg",
        "plain": "image/jpeg",
    }
    assert all(WHERE.encode() not in found[name].data for name in ("photo", "plain"))
    assert "60,000 × 60,000 pixels" in found["bomb"].reason
    assert "truncated or corrupt" in found["cut"].reason


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import os; os.abort()", "ended the decoder"),
        ("import sys; print('{}', flush=True); sys.stdin.buffer.read()", "ended the decoder"),
        (
            'import sys; print(\'{"reason": "", "shown": [["text/html", 1, 0]]}\', flush=True); '
            "sys.stdin.buffer.read()",
            "ended the decoder",
        ),
        ("import time; time.sleep(600)", "more than 0.3 seconds"),
    ],
)
def test_a_decoder_that_dies_or_hangs_is_replaced(tmp_path, monkeypatch, program, says):
    file = tmp_path / "decoder.py"
    file.write_text(program)
    monkeypatch.setattr(decoding, "_PROGRAM", file)
    pictures = {str(k): ("image/png", b"x") for k in range(2)}
    seconds = 0.3 if "seconds" in says else 60.0
    found = decode_pictures(pictures, MANY, seconds)
    assert len(found) == 2
    assert all(says in one.reason for one in found.values())


def test_the_memory_of_a_decoder_is_limited(tmp_path, monkeypatch):
    pytest.importorskip("resource")
    greedy = tmp_path / "greedy.py"
    code = decoding._PROGRAM.read_text().replace(
        "main(sys.stdin.buffer, sys.stdout.buffer)",
        "globals().update(decode=lambda *a: bytes(8 * 2**30)); "
        "main(sys.stdin.buffer, sys.stdout.buffer)",
    )
    greedy.write_text(code)
    monkeypatch.setattr(decoding, "_PROGRAM", greedy)
    found = decode_pictures({"a": ("image/png", saved(scene(), "PNG"))}, MANY)
    assert found["a"].reason == "it needs too much memory"
