"""Every way to change a file passes through a watch."""

import os
import shutil
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

from accelerando._files import atomic_write
from accelerando.testing._watch import Watch


@pytest.fixture
def seen(tmp_path):
    """What a watch of a directory has seen: kinds and names."""
    found = []

    def note(change, carry_out):
        found.append((change.kind, change.path.name))
        return carry_out(change.data)

    with Watch(tmp_path, note):
        yield found


def append(path):
    with path.open("ab") as file:
        file.write(b"3")


def edit(path):
    with path.open("r+b") as file:
        file.seek(1)
        file.write(b"x")
        file.truncate(2)


def low_level(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, b"ab")
    os.fsync(descriptor)
    os.ftruncate(descriptor, 1)
    os.close(descriptor)


def archive(path):
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("one", "1")


def in_thread(path):
    thread = threading.Thread(target=path.write_bytes, args=(b"t",))
    thread.start()
    thread.join()


def temporary(path):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(b"1")
    os.replace(file.name, path)


def replace(path):
    with atomic_write(path) as file:
        file.write(b"1")


WRITES = {
    "text": (lambda path: path.write_text("ä"), ["create", "write"]),
    "bytes": (lambda path: path.write_bytes(b"1"), ["create", "write"]),
    "append": (append, ["create", "write"]),
    "edit": (lambda path: (path.write_bytes(b"12"), edit(path)), ["create", *["write"] * 2]),
    "low level": (low_level, ["create", "write", "flush", "truncate"]),
    "archive": (archive, ["create", "write"]),
    "thread": (in_thread, ["create", "write"]),
    "temporary": (temporary, ["create", "write", "rename"]),
    "atomic": (replace, ["create", "write", "flush", "rename", "flush directory"]),
    "copy": (lambda path: shutil.copyfile(__file__, path), ["create", "write"]),
    "remove": (lambda path: (path.touch(), path.unlink()), ["create", "remove"]),
    "directory": (lambda path: path.mkdir(), ["make directory"]),
}


@pytest.mark.parametrize("how", WRITES)
def test_every_change_is_seen_and_carried_out(seen, tmp_path, how):
    write, kinds = WRITES[how]
    write(tmp_path / "it")
    found = [kind for kind, _ in seen]
    assert [kind for kind in found if kind in kinds][: len(kinds)] == kinds


@pytest.mark.parametrize("how", WRITES)
def test_the_files_are_those_of_an_unwatched_program(tmp_path, how):
    write, _ = WRITES[how]
    watched, other = tmp_path / "watched", tmp_path / "other"
    watched.mkdir()
    other.mkdir()
    with Watch(watched, lambda change, carry_out: carry_out(change.data)):
        write(watched / "it")
    write(other / "it")
    left = [
        {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}
        for folder in (watched, other)
    ]
    if how == "archive":  # it holds the time
        left = [sorted(one) for one in left]
    assert left[0] == left[1]


def test_reading_and_files_elsewhere_pass_unseen(seen, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_bytes(b"1")
    assert elsewhere.read_bytes() == b"1"
    elsewhere.unlink()
    assert seen == []


def test_a_link_to_the_directory_does_not_hide_a_change(seen, tmp_path, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(tmp_path)
    (link / "it").write_bytes(b"1")
    assert seen == [("create", "it"), ("write", "it")]


def test_everything_is_put_back(tmp_path):
    before = (open, os.open, os.replace, os.fsync)
    with pytest.raises(ZeroDivisionError), Watch(tmp_path, lambda change, carry_out: 1 / 0):
        (tmp_path / "it").write_bytes(b"1")
    assert (open, os.open, os.replace, os.fsync) == before
    assert not Path(tmp_path / "it").exists()
