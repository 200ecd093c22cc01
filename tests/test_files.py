"""A file is replaced whole, or stays what it was."""

import os

import pytest

from accelerando import _files
from accelerando._files import atomic_write, check_output, check_owner


def test_the_new_content_replaces_the_old(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_content_is_on_disk_before_the_rename_and_the_directory_after_it(tmp_path, monkeypatch):
    calls = []

    def record(name):
        original = getattr(os, name)

        def wrapper(*args, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(_files.os, name, wrapper)

    record("fsync")
    record("replace")
    with atomic_write(tmp_path / "file") as file:
        file.write(b"new")
    assert calls == ["fsync", "replace", "fsync"]


def test_an_output_that_can_be_written_is_a_path(tmp_path):
    assert check_output(str(tmp_path / "figure.PNG")) == tmp_path / "figure.PNG"
    assert check_output("figure.svg").name == "figure.svg"
    assert check_output(tmp_path / "table.csv", formats=(".csv",)) == tmp_path / "table.csv"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("figure.txt", r"--output must end in one of \.png, \.pdf, \.svg\. Got 'figure\.txt'"),
        ("figure", "must end in one of"),
        ("nowhere/figure.png", "there is no folder 'nowhere'"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(output, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        check_output(output)


def test_a_file_that_somebody_else_could_have_written_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    check_owner(path, argument="x")  # does not exist
    path.touch(mode=0o664)
    check_owner(path, argument="x")
    path.chmod(0o666)
    with pytest.raises(PermissionError, match=r"^x: .*can be written by everybody.*chmod o-w"):
        check_owner(path, argument="x")
    path.chmod(0o600)
    if os.geteuid() == 0:  # the files of root are those of everybody
        os.chown(path, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(PermissionError, match=r"belongs to user .*chown"):
        check_owner(path, argument="x")
