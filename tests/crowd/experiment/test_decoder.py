"""Pictures as browsers get them, from every kind that people have."""

import io

import numpy as np
import pytest
from PIL import Image

from accelerando.crowd.experiment.decoder import CannotBeShownError, decode, main
from tests.crowd.experiment.pictures import animated, exif, gradient, saved, scene

MANY = 50_000_000
KINDS = {
    "jpeg": ("image/jpeg", saved(scene(), "JPEG", quality=95)),
    "gray": ("image/jpeg", saved(scene().convert("L"), "JPEG")),
    "progressive": ("image/jpeg", saved(scene(), "JPEG", progressive=True)),
    "cmyk": ("image/jpeg", saved(scene().convert("CMYK"), "JPEG", quality=95)),
    "png": ("image/png", saved(scene(), "PNG")),
    "palette": ("image/png", saved(scene().convert("P"), "PNG")),
    "clear": ("image/png", saved(scene().convert("RGBA"), "PNG")),
    "16 bits": ("image/png", saved(gradient(), "PNG")),
    "webp": ("image/webp", saved(scene(), "WEBP")),
    "gif": ("image/gif", saved(scene().convert("P"), "GIF")),
    "moving": ("image/gif", animated("GIF")),
    "bmp": ("image/bmp", saved(scene(), "BMP")),
    "tiff": ("image/tiff", saved(scene(), "TIFF")),
    "tiff16": ("image/tiff", saved(gradient(), "TIFF")),
    "avif": ("image/avif", saved(scene(), "AVIF", quality=90)),
    "heic": ("image/heic", saved(scene(), "HEIF", quality=90)),
}
SHOWN = ("image/jpeg", "image/png", "image/webp", "image/gif")


def opened(data):
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("name", KINDS)
def test_a_picture_of_each_kind_looks_as_it_did(name):
    kind, data = KINDS[name]
    (shown, width, content), *_ = decode(data, kind, MANY)
    assert shown in SHOWN
    assert width == 96
    assert (content == data) is (kind in SHOWN and name != "cmyk")
    if shown == "image/jpeg":
        assert opened(content).mode in ("RGB", "L")
    if "16" in name:
        wanted = np.linspace(0, 255, 96 * 64).reshape(64, 96)
        found = np.asarray(opened(content).convert("I"), float)
        found = found / 257 if found.max() > 255 else found
    else:
        wanted = np.asarray(opened(data).convert("RGB"), float)
        found = np.asarray(opened(content).convert("RGB"), float)
    assert np.abs(wanted - found).mean() < 3


@pytest.mark.parametrize("name", KINDS)
def test_a_picture_that_is_cut_off_is_refused(name):
    kind, data = KINDS[name]
    for share in (0.2, 0.6):
        with pytest.raises((CannotBeShownError, OSError, SyntaxError, ValueError, EOFError)):
            decode(data[: int(share * len(data))], kind, MANY)


def test_a_damaged_png_is_refused():
    data = bytearray(saved(scene(), "PNG"))
    data[len(data) // 2] ^= 255
    with pytest.raises(SyntaxError, match="checksum"):
        decode(bytes(data), "image/png", MANY)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_photos_are_turned_upright(form):
    image = scene()
    data = saved(image, form, exif=exif(6))  # the phone was held upright
    (_, width, content), *_ = decode(data, f"image/{form.lower()}", MANY)
    turned = opened(content)
    assert turned.size == (64, 96)
    assert width == 64
    assert not turned.getexif()
    wanted = np.asarray(image.rotate(-90, expand=True), float)
    assert np.abs(np.asarray(turned.convert("RGB"), float) - wanted).mean() < 20


def test_gifs_and_animated_avifs_keep_moving():
    for kind, data in (("image/gif", animated("GIF")), ("image/avif", animated("AVIF"))):
        ((shown, _, content),) = decode(data, kind, MANY)
        assert opened(content).n_frames == 2
        assert shown in SHOWN


def test_what_is_clear_stays_clear():
    image = scene().convert("RGBA")
    image.putalpha(40)
    for form, kind in (("TIFF", "image/tiff"), ("AVIF", "image/avif"), ("PNG", "image/png")):
        (_, _, content), *_ = decode(saved(image, form), kind, MANY)
        assert opened(content).convert("RGBA").getpixel((3, 3))[3] in range(35, 46)


def test_large_pictures_have_copies_for_small_screens():
    photo = scene(1300, 700).effect_spread(4)
    for form, made in (("JPEG", "image/jpeg"), ("PNG", "image/webp")):
        main_one, *copies = decode(saved(photo, form), f"image/{form.lower()}", MANY)
        assert [(kind, width) for kind, width, _ in copies] == [(made, 480), (made, 960)]
        for _, width, data in copies:
            assert opened(data).size == (width, round(700 * width / 1300))
            assert len(data) < len(main_one[2])


def test_too_many_pixels_are_refused_before_they_are_unpacked():
    with pytest.raises(CannotBeShownError, match="96 × 64 pixels"):
        decode(saved(scene(), "PNG"), "image/png", 96 * 64 - 1)
    frames = [scene().rotate(k).convert("P") for k in range(25)]
    film = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(CannotBeShownError, match="frames"):
        decode(film, "image/gif", 96 * 64)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<svg xmlns='http://www.w3.org/2000/svg'><a>", "not valid XML"),
        ("<svg><path/></svg>", "xmlns"),
        (
            "<!DOCTYPE svg [<!ENTITY a '" + "a" * 900 + "'><!ENTITY b '" + "&a;" * 900 + "'>"
            "<!ENTITY c '" + "&b;" * 900 + "'>]>"
            "<svg xmlns='http://www.w3.org/2000/svg'>&c;&c;</svg>",
            "not valid XML",
        ),
    ],
)
def test_a_drawing_that_browsers_do_not_show_is_refused(text, says):
    with pytest.raises(CannotBeShownError, match=says):
        decode(text.encode(), "image/svg+xml", MANY)
    fine = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    assert decode(fine, "image/svg+xml", MANY) == [("image/svg+xml", 0, fine)]


def test_the_program_answers_each_picture_and_ends_with_its_input():
    good, bad = saved(scene(), "PNG"), b"\x89PNG\r\n\x1a\n nothing"
    order = b'{"kind": "image/png", "pixels": 100000}'
    head = len(order).to_bytes(4, "big")
    source = b"".join(len(data).to_bytes(4, "big") + head + order + data for data in (bad, good))
    target = io.BytesIO()
    main(io.BytesIO(source), target)
    first, second, rest = target.getvalue().split(b"\n", 2)
    assert b"truncated or corrupt" in first
    assert b'"reason": ""' in second
    assert rest == good
