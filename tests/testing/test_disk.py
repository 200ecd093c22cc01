"""Faults of a disk: what they let through, and what they do not."""

import errno

import pytest

from accelerando._files import atomic_write
from accelerando.testing import DiskFault
from accelerando.testing._disk import Killed


def save(path, content=b"0123456789"):
    with atomic_write(path) as file:
        file.write(content)


def test_an_error_happens_once_and_later_changes_work(tmp_path):
    with DiskFault(tmp_path, at=1) as fault:
        with pytest.raises(OSError, match="Input/output error") as error:
            save(tmp_path / "a")
        save(tmp_path / "b")
    assert error.value.errno == errno.EIO
    assert fault.happened
    assert fault.change.kind == "create"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_full_disk_stays_full_and_files_can_be_removed(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    with DiskFault(tmp_path, at=2, kind="full") as fault:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left") as error:
                save(tmp_path / "a")
            assert error.value.errno == errno.ENOSPC
        (tmp_path / "old").unlink()
    assert fault.change.kind == "write"
    assert not list(tmp_path.iterdir()), "the temporary file was removed"


def test_a_full_disk_lets_changes_pass_that_need_no_space(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    with DiskFault(tmp_path, at=1, kind="full") as fault:
        (tmp_path / "a").rename(tmp_path / "b")
    assert fault.happened
    assert (tmp_path / "b").exists()


def test_a_process_that_is_killed_changes_nothing_any_more(tmp_path):
    reached = []
    with DiskFault(tmp_path, at=2, kind="kill") as fault:
        try:
            save(tmp_path / "a")
        except Exception:
            reached.append("caught")
        reached.append("went on")
    assert fault.happened
    assert reached == []
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    assert left.read_bytes() == b"01234"


def test_other_exceptions_pass(tmp_path):
    with pytest.raises(ZeroDivisionError), DiskFault(tmp_path, at=1):
        1 / 0  # noqa: B018
    with pytest.raises(KeyboardInterrupt), DiskFault(tmp_path, at=1):
        raise KeyboardInterrupt
    assert issubclass(Killed, BaseException)
    assert not issubclass(Killed, Exception)


def test_a_fault_that_is_not_reached_says_so(tmp_path):
    with DiskFault(tmp_path, at=6) as fault:
        save(tmp_path / "a")
    assert not fault.happened
    assert fault.n_changes == 5, "create, write, flush, rename, flush the directory"
    assert fault.change is None


def test_kinds_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"'error', 'full' or 'kill'. Got 'slow' instead"):
        DiskFault(tmp_path, 1, "slow")
