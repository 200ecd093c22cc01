"""A directory on a disk or in a store: files are replaced whole."""

import uuid

import pytest

from accelerando import _folder
from accelerando._folder import LocalFolder, RemoteFolder, open_folder, split_path


@pytest.fixture(params=["path", "file URL", "memory"])
def folder(request, tmp_path):
    places = {
        "path": tmp_path / "a" / "b",
        "file URL": f"file://{tmp_path}/a/b",
        "memory": f"memory://{uuid.uuid4().hex}/b",
    }
    return open_folder(places[request.param])


def put(folder, name, content):
    folder.write(name, lambda file: file.write(content))


def test_files_are_written_read_listed_and_removed(folder):
    assert not folder.exists()
    assert folder.names() == []
    folder.create()
    folder.create()
    assert folder.exists()
    put(folder, "one", b"1")
    put(folder, "two", b"2")
    put(folder, "one", b"3")
    assert sorted(folder.names()) == ["one", "two"]
    assert (folder.read("one"), folder.read("two")) == (b"3", b"2")
    folder.remove("one")
    folder.remove("one")
    assert folder.names() == ["two"]
    with pytest.raises(FileNotFoundError):
        folder.read("one")
    assert folder.path("two").endswith("/b/two")


def test_an_error_leaves_the_old_file(folder):
    folder.create()
    put(folder, "one", b"old")

    def half(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        folder.write("one", half)
    assert folder.read("one") == b"old"
    assert folder.names() == ["one"]


def test_a_local_url_is_written_as_carefully_as_a_path(tmp_path):
    assert isinstance(open_folder(f"file://{tmp_path}"), LocalFolder)
    assert isinstance(open_folder("memory://x"), RemoteFolder)


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match=r"nowhere://x cannot be opened with fsspec: "):
        open_folder("nowhere://x")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_folder.os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(PermissionError, match="cannot be written"):
        open_folder(tmp_path).create()


def test_a_path_is_split_into_directory_and_name(tmp_path):
    folder, name = split_path(tmp_path / "state.pt")
    assert (folder.path(name), name) == (str(tmp_path / "state.pt"), "state.pt")
    folder, name = split_path("state.pt")
    assert folder.path(name) == "state.pt"
