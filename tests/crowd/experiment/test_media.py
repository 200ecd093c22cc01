"""Media are recognized by their content."""

import pytest

from accelerando.crowd.experiment.media import Media, recognize
from tests.crowd.web.conftest import png


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (png(), "image/png"),
        (b"GIF89a", "image/gif"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF0000WEBP", "image/webp"),
        (b"RIFF0000WAVE", "audio/wav"),
        (b"0000ftypisom", "video/mp4"),
        (b"0000ftypqt  ", "video/quicktime"),
        (b"0000ftypM4A ", "audio/mp4"),
        (b"0000ftypavif", "image/avif"),
        (b"0000ftypheic", "image/heic"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "image/heic"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif", "image/avif"),
        (b"II*\0", "image/tiff"),
        (b"\x1aE\xdf\xa3", "video/webm"),
        (b"OggS....vorbis", "audio/ogg"),
        (b"ID3\x03", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"<?xml version='1.0'?><!-- x --><svg xmlns='y'/>", "image/svg+xml"),
        (b"<svgx>", None),
        (b"", None),
    ],
)
def test_types_come_from_the_content(data, kind):
    assert recognize(data) == kind
    if kind is not None:
        assert "." in Media("x", kind, data).key
