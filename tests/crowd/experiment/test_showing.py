"""Items as browsers show them."""

import pytest

from accelerando.crowd.experiment import (
    Files,
    Limits,
    SettingsError,
    make_experiment,
    read_upload,
    read_yaml,
)
from tests.crowd.experiment.pictures import WHERE, exif, saved, scene, sound
from tests.crowd.web.conftest import png, zipped


def made(files, known=None):
    found = Files()
    found.merge(read_upload("items.zip", zipped(files)))
    reader = None if known is None else lambda name: known if name == "faces" else {}
    return make_experiment(read_yaml("name: faces\n"), found, Limits(), reader)


def test_photos_of_phones_become_pictures_and_everything_keeps_its_name():
    photo = scene(700, 500).effect_spread(5)
    files = {
        "a.heic": saved(photo, "HEIF", exif=exif(), quality=90),
        "b.tif": saved(scene(), "TIFF"),
        "c.wav": sound(),
        "d.png": png(3),
    }
    found = made(files)
    assert [item.text for item in found.items] == list(files)
    assert [item.kind for item in found.items] == ["image", "image", "audio", "image"]
    assert [item.widths for item in found.items] == [(480,), (), (), ()]
    types = [found.media[item.media].type for item in found.items]
    assert types == ["image/jpeg", "image/png", "audio/wav", "image/png"]
    assert WHERE.encode() not in b"".join(one.data for one in found.media.values())


def test_all_that_cannot_be_shown_is_named_in_one_sentence():
    bad = saved(scene(), "JPEG")
    files = {"cut.jpg": bad[:400], "quiet.wav": sound(0), "a.png": png(1), "b.png": png(2)}
    with pytest.raises(SettingsError) as refused:
        made(files)
    (problem,) = refused.value.problems
    assert problem.message.startswith("2 files cannot be shown: cut.jpg: it is truncated")
    assert "quiet.wav: it has no sound in it." in problem.message


def test_what_is_stored_is_not_decoded_again(monkeypatch):
    files = {f"{k}.heic": saved(scene().rotate(k), "HEIF") for k in range(3)}
    first = made(files)
    known = {m.source: (key, tuple(m.sizes)) for key, m in first.media.items()}
    asked = []
    monkeypatch.setattr(
        "accelerando.crowd.experiment.showing.decode_pictures",
        lambda pictures, pixels: asked.append(list(pictures)) or {},
    )
    again = made(files, known)
    assert again.items == first.items
    assert again.media == {}
    assert asked == [[]]
