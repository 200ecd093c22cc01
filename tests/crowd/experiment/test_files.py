"""Files of an experiment, within limits."""

import io
import warnings
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd.experiment import (
    Files,
    SettingsError,
    make_experiment,
    read_upload,
    read_yaml,
)


def problems(text, files=None):
    with pytest.raises(SettingsError) as refused:
        make_experiment(read_yaml(text), files or Files())
    return refused.value.problems


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
