"""Files of an experiment, within limits."""

import io
import warnings
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd.experiment import Files, Limits, read_upload
from accelerando.crowd.experiment.files import read_folder
from tests.crowd.web.conftest import png, zipped


@given(st.binary(max_size=300))
def test_any_upload_is_read_or_refused(data):
    files = read_upload("x.zip", data)
    assert files.problems or files.media or files.lists or files.settings


def packed(entries, packing=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", packing) as archive:
        warnings.simplefilter("ignore")  # zipfile warns of names that are there twice
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["list.csv", "list.txt", "a.yaml", "a.svg"])
def test_of_two_files_of_one_name_none_wins_silently(name):
    content = "<svg></svg>" if name.endswith("svg") else "text\na\n"
    found = read_upload("x.zip", packed([(name, content), (name, content + "\n")]))
    assert "there twice" in found.problems[0].message
    files = read_upload(name, content.encode())
    files.merge(read_upload(name, content.encode()))
    assert "there twice" in files.problems[0].message


def test_names_that_differ_in_case_or_in_their_accents_are_different_files():
    names = ["A.svg", "a.svg", "é.svg", "e\u0301.svg", "./b.svg"]
    found = read_upload("x.zip", packed([(name, f"<svg>{name}</svg>") for name in names]))
    assert not found.problems
    assert list(found.media) == names


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_python_unpacks_at_once_are_refused(packing):
    """240 bytes of bzip2 were 40 MB in memory before anything was counted."""
    found = read_upload("x.zip", packed([("a.svg", b"<svg>" + bytes(3_000_000))], packing))
    assert [problem.message for problem in found.problems] == [
        "the entry 'a.svg' is packed unusually."
    ]


def test_every_file_is_used_or_named(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name, data in {
        "b.png": png(1),
        "B.png": png(2),
        "deep/er/a.png": png(3),
        ".hidden.png": png(4),
        "notes.pdf": b"%PDF",
        "setup.yaml": b"a: 1",
        ".DS_Store": b"x",
        "._b.png": b"x",
        "Thumbs.db": b"x",
    }.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "link.png").symlink_to(tmp_path / "b.png")
    found = read_folder(tmp_path)
    assert set(found.media) == {"b.png", "B.png", "deep/er/a.png"}
    assert not found.problems
    named = [notice.split(": ")[1] for notice in found.notices]
    assert named == [".hidden.png", "link.png", "notes.pdf"]
    assert set(found.settings) == {"setup.yaml"}

    packed = zipped(
        {"__MACOSX/._a.png": b"x", "x/.DS_Store": b"x", ".b/c.png": png(), "a.png": png()}
    )
    found = read_upload("p.zip", packed)
    assert set(found.media) == {"a.png"}
    assert found.notices == ["not used: p.zip/.b/c.png: hidden files are no items."]


def test_empty_double_and_unknown_files_are_refused():
    files = Files()
    for name, data in (("a.png", b""), ("b.jpg", b"no picture"), ("l.csv", b"x"), ("l.csv", b"y")):
        files.merge(read_upload(name, data))
    said = " ".join(str(problem) for problem in files.problems)
    for words in ("a.png: the file is empty", "b.jpg: this is neither", "l.csv: the file is there"):
        assert words in said


def test_a_folder_is_read_up_to_a_number_of_bytes(tmp_path):
    for k in range(4):
        (tmp_path / f"{k}.png").write_bytes(png(k))
    limits = Limits(total_bytes=3 * len(png()))
    (problem,) = read_folder(tmp_path, limits).problems
    assert "Use fewer" in problem.remedy
