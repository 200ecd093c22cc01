"""What may be left after a power cut, for the ways in which programs write files."""

import os

from accelerando._files import atomic_write, sync_directory
from accelerando.testing import PowerCut


def contents(power, into, name="a", after=1):
    """What the file may be once `after` things were acknowledged; None if it is missing."""
    found = set()
    for remains in power.remains(into):
        if len(remains.acknowledged) >= after:
            file = remains.folder / name
            found.add(file.read_bytes() if file.exists() else None)
    return found


def recorded(tmp_path, write, *, former=b"old"):
    folder = tmp_path / "disk"
    folder.mkdir()
    if former is not None:
        (folder / "a").write_bytes(former)
    with PowerCut(folder) as power:
        write(folder / "a")
        power.acknowledge("a")
    return power


def in_place(path):
    path.write_bytes(b"newer")


def flushed(path):
    with path.open("wb") as file:
        file.write(b"newer")
        file.flush()
        os.fsync(file.fileno())


def renamed(path):
    other = path.with_suffix(".part")
    other.write_bytes(b"newer")
    other.replace(path)


def whole(path):
    with atomic_write(path) as file:
        file.write(b"newer")


def test_what_is_written_in_place_may_be_lost_or_torn(tmp_path):
    power = recorded(tmp_path, in_place)
    assert contents(power, tmp_path) == {b"old", b"newer", b"ne"}
    assert None not in contents(power, tmp_path, after=0), "its name was there before"
    assert b"" in contents(power, tmp_path, after=0), "emptied, and not yet written"


def test_a_new_file_that_is_flushed_may_still_have_no_name(tmp_path):
    power = recorded(tmp_path, flushed, former=None)
    assert contents(power, tmp_path) == {None, b"newer"}


def test_a_rename_may_arrive_before_the_content(tmp_path):
    power = recorded(tmp_path, renamed)
    assert contents(power, tmp_path) == {b"old", b"newer", b"", b"ne"}


def test_an_atomic_write_leaves_the_old_or_the_new_file_and_then_the_new_one(tmp_path):
    power = recorded(tmp_path, whole)
    assert contents(power, tmp_path) == {b"newer"}
    assert contents(power, tmp_path, after=0) == {b"old", b"newer"}


def test_a_removed_file_may_come_back_until_the_directory_is_flushed(tmp_path):
    def remove(path):
        path.unlink()

    def remove_for_good(path):
        path.unlink()
        sync_directory(path.parent)

    assert contents(recorded(tmp_path, remove), tmp_path) == {None, b"old"}
    (tmp_path / "disk").rename(tmp_path / "former")
    assert contents(recorded(tmp_path, remove_for_good), tmp_path) == {None}


def test_appending_keeps_what_was_flushed(tmp_path):
    def append(path):
        with path.open("ab") as file:
            file.write(b"1234")

    assert contents(recorded(tmp_path, append), tmp_path) == {b"old", b"old12", b"old1234"}


def test_acknowledgments_are_in_the_order_of_the_changes(tmp_path):
    with PowerCut(tmp_path / "disk") as power:
        (tmp_path / "disk").mkdir()
        for number in range(3):
            (tmp_path / "disk" / str(number)).touch()
            power.acknowledge(number)
    seen = [remains.acknowledged for remains in power.remains(tmp_path)]
    assert sorted(map(len, seen)) == list(map(len, seen))
    assert seen[-1] == [0, 1, 2]
