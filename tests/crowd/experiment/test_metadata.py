"""Metadata goes, pixels stay as they are."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from accelerando.crowd.experiment.metadata import without_metadata
from tests.crowd.experiment.pictures import WHERE, animated, exif, saved, scene

NOTE = PngImagePlugin.PngInfo()
NOTE.add_itxt("Comment", WHERE)
PICTURES = {
    "jpeg": ("image/jpeg", saved(scene(), "JPEG", exif=exif(), comment=WHERE.encode())),
    "progressive": ("image/jpeg", saved(scene(), "JPEG", exif=exif(), progressive=True)),
    "restarts": ("image/jpeg", saved(scene(), "JPEG", restart_marker_rows=1, xmp=WHERE.encode())),
    "png": ("image/png", saved(scene(), "PNG", exif=exif(), pnginfo=NOTE)),
    "apng": ("image/png", animated("PNG", pnginfo=NOTE)),
    "webp": ("image/webp", saved(scene(), "WEBP", exif=exif(), xmp=WHERE.encode())),
    "moving webp": ("image/webp", animated("WEBP", exif=exif())),
    "gif": ("image/gif", animated("GIF", comment=WHERE.encode())),
}


def frames(data):
    image = Image.open(io.BytesIO(data))
    found = []
    for k in range(getattr(image, "n_frames", 1)):
        image.seek(k)
        found.append(np.asarray(image.convert("RGB")))
    return np.stack(found)


@pytest.mark.parametrize("name", PICTURES)
def test_no_place_and_the_same_pixels(name):
    kind, data = PICTURES[name]
    data += f"trailer {WHERE}".encode()  # phones append films and second pictures
    assert WHERE.encode() in data
    made = without_metadata(data, kind)
    assert WHERE.encode() not in made
    assert np.array_equal(frames(made), frames(data))
    assert not Image.open(io.BytesIO(made)).getexif()
    assert without_metadata(made, kind) == made


def test_color_profiles_and_durations_stay():
    profile = b"a profile of colors " * 20
    for form in ("JPEG", "PNG", "WEBP"):
        made = without_metadata(saved(scene(), form, icc_profile=profile), f"image/{form.lower()}")
        assert Image.open(io.BytesIO(made)).info["icc_profile"] == profile
    moving = Image.open(io.BytesIO(without_metadata(PICTURES["gif"][1], "image/gif")))
    assert (moving.info["duration"], moving.info["loop"]) == (100, 0)


@given(st.sampled_from(sorted(PICTURES)), st.integers(0, 3000), st.binary(max_size=8))
def test_damaged_files_are_no_trouble(name, place, noise):
    kind, data = PICTURES[name]
    place = min(place, len(data))
    without_metadata(data[:place] + noise + data[place + len(noise) :], kind)
