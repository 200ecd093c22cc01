"""Headers of videos and sounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd.experiment.containers import flaw_of
from accelerando.crowd.experiment.media import recognize
from tests.crowd.experiment.pictures import sound


def box(name, *content):
    data = b"".join(content)
    return (len(data) + 8).to_bytes(4, "big") + name + data


def track(kind):
    return box(b"trak", box(b"mdia", box(b"hdlr", bytes(8) + kind + bytes(12))))


def mp4(*kinds, brand=b"isom", content=b"frames"):
    moov = box(b"moov", *[track(kind) for kind in kinds])
    return box(b"ftyp", brand + bytes(4)) + moov + box(b"mdat", content)


def ogg(*pages):
    return b"".join(
        b"OggS" + bytes(22) + bytes([1, len(page)]) + page for page in (b"theora", *pages)
    )


WEBM = b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\xff\x86V_VP8\x1f\x43\xb6\x75\xff data"
MP3 = b"ID3\x03\x00\x00\x00\x00\x00\x05tagss\xff\xfb\x90\x00" + bytes(400)
FLAC = b"fLaC\x80\x00\x00\x22" + bytes(34 + 40)
FINE = {
    "video/mp4": mp4(b"vide", b"soun"),
    "video/quicktime": mp4(b"vide", brand=b"qt  "),
    "audio/mp4": mp4(b"soun", brand=b"M4A "),
    "video/webm": WEBM,
    "video/ogg": ogg(b"a", b"b", b"c"),
    "audio/wav": sound(),
    "audio/mpeg": MP3,
    "audio/flac": FLAC,
}


@pytest.mark.parametrize("kind", FINE)
def test_whole_files_are_taken_and_cut_ones_refused(kind):
    data = FINE[kind]
    assert recognize(data) == kind
    assert flaw_of(data, kind) is None
    assert flaw_of(data[:14], kind)


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (mp4(b"soun"), "video/mp4", "a sound and no picture"),
        (mp4(), "video/mp4", "no pictures"),
        (mp4(b"vide", brand=b"M4A "), "audio/mp4", "no sound"),
        (mp4(b"vide")[:-3], "video/mp4", "cut off"),
        (box(b"ftyp", b"isom") + box(b"mdat", b"x"), "video/mp4", "table of contents"),
        (WEBM.replace(b"V_", b"A_"), "video/webm", "no pictures"),
        (ogg(b"a"), "audio/ogg", "no content"),
        (ogg(b"a", b"b", b"c")[:-1], "audio/ogg", "cut off"),
        (sound()[:-200], "audio/wav", "cut off"),
        (sound(0), "audio/wav", "no sound"),
        (b"ID3\x03\x00\x00\x00\x00\x00\x00" + bytes(900), "audio/mpeg", "no sound"),
    ],
)
def test_what_is_missing_is_named(data, kind, says):
    assert says in flaw_of(data, kind)


@given(st.sampled_from(sorted(FINE)), st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_looked_at_without_an_error(kind, data, place):
    flaw_of(data, kind)
    fine = FINE[kind]
    flaw_of(fine[:place] + data + fine[place + len(data) :], kind)
