"""A directory of checkpoints: what is kept, what is passed over, what a crash leaves."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import threading
import uuid
from pathlib import Path

import pytest
import torch

from accelerando import _files
from accelerando._engine import checkpoint, checkpoint_folder, journal
from accelerando._engine.checkpoint_folder import CheckpointWriter, copied, newest, states_in
from accelerando._engine.position import Part
from accelerando._folder import open_folder
from accelerando.exceptions import StateError
from tests._engine.test_journal import Run
from tests.object_store import ObjectStore

PLAIN = {"parts": (Part.ALL & ~Part.RECORDS).value, "host": {"history": []}}


def save(writer, run, *, best=False):
    """Record four updates and write a checkpoint."""
    for _ in range(4):
        run.update()
    run.end_epoch()
    plain = {**PLAIN, "position": {"update": run.n_updates}}
    content = {"json": json.dumps(plain), "tensors": {"w": torch.full((3,), run.n_updates)}}
    writer.save(content, run.records, run.history, best=best)


def writer_of(path, keep=2, continues=None):
    return CheckpointWriter(path, keep=keep, continues=continues)


def update_of(found):
    return json.loads(found[1]["json"])["position"]["update"]


def check_whole(found):
    """Check that a checkpoint is of one moment: model, position and all rows."""
    update = update_of(found)
    tensors = found[1]["tensors"]
    assert tensors["w"].tolist() == [update] * 3
    assert tensors["updates"][:, 0].tolist() == list(range(1, update + 1))
    rows = json.loads(found[1]["json"])["host"]["history"]
    assert [row["epoch"] for row in rows] == list(range(1, update // 4 + 1))
    assert sum(len(row["batches"]) for row in rows) == update


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(journal, "ROWS_PER_FILE", 10)


@pytest.fixture(params=["disk", "memory", ObjectStore.protocol])
def place(request, tmp_path):
    """A directory on a disk, in the memory, and in a store of objects as S3 is."""
    if request.param == "disk":
        return tmp_path / "run"
    return f"{request.param}://{uuid.uuid4().hex}/run"


def kinds(folder):
    names = folder.names()
    return [sum(name.startswith(kind) for name in names) for kind in ("state", "records", ".")]


def test_the_newest_ones_and_the_best_one_are_kept(place):
    writer, run = writer_of(place), Run()
    for number in range(6):
        save(writer, run, best=number in (0, 1))
    writer.wait()
    folder = writer.folder
    assert states_in(folder) == ["state-00000006.pt", "state-00000005.pt", "state-00000002-best.pt"]
    found = newest(folder)
    assert update_of(found) == 24
    check_whole(found)
    best = newest(folder, best=True)
    assert update_of(best) == 8
    check_whole(best)


def test_a_state_and_its_records_cost_the_same_late_and_early(tmp_path):
    writer, run = writer_of(tmp_path, keep=1000), Run()
    for _ in range(100):
        save(writer, run)
    writer.wait()
    sizes = [(tmp_path / name).stat().st_size for name in states_in(writer.folder)]
    assert max(sizes[:20]) <= max(sizes[-20:]) + 64, "64 bytes: a longer number, and alignment"
    files = [(tmp_path / name).stat().st_size for name in writer._journal.files]
    assert files[-1] <= files[1] + 512


def test_a_new_run_replaces_the_one_before_when_its_first_checkpoint_is_complete(place):
    first, run = writer_of(place), Run()
    for _ in range(5):
        save(first, run, best=True)
    first.wait()
    second = writer_of(place)
    assert kinds(second.folder)[0] == 2, "nothing is removed before there is something new"
    save(second, Run())
    second.wait()
    assert kinds(second.folder) == [1, 0, 0]
    check_whole(newest(second.folder))


def test_a_continued_run_keeps_the_checkpoints_and_drops_damaged_newer_ones(place):
    first, run = writer_of(place), Run()
    for _ in range(4):
        save(first, run)
    first.wait()
    folder, (name, older) = first.folder, states_in(first.folder)
    folder.write(name, lambda file: file.write(b"half"))
    second = writer_of(place, continues=older)
    run = Run()
    for _ in range(3):
        for _ in range(4):
            run.update()
        run.end_epoch()
    save(second, run)
    second.wait()
    assert states_in(folder) == ["state-00000005.pt", older]
    check_whole(newest(folder))
    for _ in range(3):
        save(second, run)
    second.wait()
    check_whole(newest(folder))
    needed = {name for name in folder.names() if name.startswith("records")}
    assert needed == set(second._journal.files), "records of the former process are gone"


def test_other_columns_begin_a_new_chain_of_files_and_the_old_one_is_removed(tmp_path):
    writer, run = writer_of(tmp_path), Run()
    for _ in range(4):
        save(writer, run)
    writer.wait()
    former = set(writer._journal.files)
    run.records.set_columns(["noise"])
    run.records.epochs.load(run.records.epochs.tensor())
    run.history = list(run.history)
    for number in range(3):
        save(writer, run)
        writer.wait()
        check_whole(newest(writer.folder))
        kept = {name for name in os.listdir(tmp_path) if name in former}
        assert kept == (former if number == 0 else set()), "the older of two states needs them"


# -- in the background ----------------------------------------------------------------------------


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    writer, run, go = writer_of(tmp_path), Run(), threading.Event()
    dump = checkpoint.dump

    def slow(content, file):
        assert go.wait(30)
        dump(content, file)

    monkeypatch.setattr(checkpoint_folder.checkpoint, "dump", slow)
    weights = torch.ones(3)
    run.update()
    content = {"json": json.dumps({**PLAIN, "position": {"update": 1}}), "tensors": {"w": weights}}
    writer.save(content, run.records, run.history, best=False)
    weights.fill_(7)
    run.update()
    run.history[-1]["valid_loss"] = 1.0
    assert states_in(writer.folder) == []
    go.set()
    writer.wait()
    _, found = newest(writer.folder)
    assert found["tensors"]["w"].tolist() == [1, 1, 1]
    assert len(found["tensors"]["updates"]) == 1
    assert json.loads(found["json"])["host"]["history"] == [
        {"epoch": 1, "batches": [{"train_loss": 1 / 3}]}
    ]


def test_equal_views_are_copied_once():
    weight = torch.arange(6.0).reshape(2, 3)
    found = copied({"a": weight, "b": [weight.detach(), weight[0]], "c": 1}, {})
    assert found["a"].data_ptr() == found["b"][0].data_ptr() != weight.data_ptr()
    assert found["b"][1].data_ptr() != found["a"].data_ptr()
    assert found["c"] == 1


def test_a_writer_is_not_pickled(tmp_path):
    assert pickle.loads(pickle.dumps(writer_of(tmp_path))) is None


# -- trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["state-", "records-"])
def test_a_full_disk_warns_once_and_the_last_checkpoint_stays(tmp_path, monkeypatch, kind):
    writer, run = writer_of(tmp_path), Run()
    save(writer, run)
    writer.wait()
    write, full = type(writer.folder).write, True

    def limited(self, name, content):
        if full and name.startswith(kind):
            raise OSError(28, "No space left on device")
        write(self, name, content)

    monkeypatch.setattr(type(writer.folder), "write", limited)
    save(writer, run)
    with pytest.warns(UserWarning, match=r"No space left .* last complete .*state-00000001\.pt"):
        writer.wait()
    for _ in range(3):
        save(writer, run)
    writer.wait()  # no second warning: it would be an error
    check_whole(newest(writer.folder))
    before = update_of(newest(writer.folder))
    assert before == 4
    save(writer, run)
    writer.wait()  # no second warning: it would be an error
    full = False
    save(writer, run)
    writer.wait()
    check_whole(newest(writer.folder))
    assert update_of(newest(writer.folder)) == 28


@pytest.mark.parametrize("damage", ["empty", "cut", "one bit", "text"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_that_names_it(place, damage):
    writer, run = writer_of(place), Run()
    for _ in range(3):
        save(writer, run)
    writer.wait()
    folder = writer.folder
    name = states_in(folder)[0]
    content = folder.read(name)
    half = len(content) // 2
    damaged = {
        "empty": b"",
        "cut": content[:half],
        "one bit": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
        "text": b"hello",
    }[damage]
    folder.write(name, lambda file: file.write(damaged))
    with pytest.warns(UserWarning, match=f"{name} is .* continues from .*state-00000002.pt"):
        found = newest(folder)
    assert update_of(found) == 8
    check_whole(found)


def test_damaged_records_do_not_cost_the_model(tmp_path):
    writer, run = writer_of(tmp_path), Run()
    for _ in range(6):
        save(writer, run)
    writer.wait()
    first = writer._journal.files[0]
    (tmp_path / first).write_bytes(b"half")
    with pytest.warns(UserWarning, match=rf"{first} is .* without the records before"):
        found = newest(writer.folder)
    assert update_of(found) == 24
    assert found[1]["tensors"]["w"].tolist() == [24, 24, 24]


def test_if_no_checkpoint_can_be_read_it_is_an_error(tmp_path):
    assert newest(open_folder(tmp_path)) is None
    (tmp_path / "state-00000001.pt").write_bytes(b"half")
    (tmp_path / "state.pt").write_bytes(b"half")
    with pytest.raises(
        StateError, match=r"No checkpoint can be read\. .*state-00000001\.pt is not"
    ):
        newest(open_folder(tmp_path))


# -- every moment of a crash ----------------------------------------------------------------------


class Disk:
    """Records what is done to a directory, and rebuilds it as a power cut could leave it."""

    def __init__(self, monkeypatch):
        self.done = []
        mkstemp, fdopen, replace = tempfile.mkstemp, os.fdopen, os.replace
        unlink, fsync = Path.unlink, os.fsync
        names = {}

        def note_mkstemp(**options):
            handle, name = mkstemp(**options)
            names[handle] = Path(name).name
            self.done.append(("create", names[handle]))
            return handle, name

        def note_fdopen(handle, mode):
            file, write = fdopen(handle, mode, buffering=0), self._write
            name = names.pop(handle)

            class Noted:
                def __enter__(self):
                    return self

                def __exit__(self, *error):
                    file.close()

                def write(self, content):
                    content = bytes(content)
                    write(name, content)
                    return file.write(content)

                def flush(self):
                    file.flush()

                def fileno(self):
                    names[file.fileno()] = name
                    return file.fileno()

            return Noted()

        def note_fsync(handle):
            name = names.pop(handle, None)
            self.done.append(("fsync", name))
            fsync(handle)

        def note_replace(source, target):
            self.done.append(("rename", Path(source).name, Path(target).name))
            replace(source, target)

        def note_unlink(path, missing_ok=False):
            self.done.append(("remove", path.name))
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(_files.tempfile, "mkstemp", note_mkstemp)
        monkeypatch.setattr(_files.os, "fdopen", note_fdopen)
        monkeypatch.setattr(_files.os, "fsync", note_fsync)
        monkeypatch.setattr(_files.os, "replace", note_replace)
        monkeypatch.setattr(Path, "unlink", note_unlink)

    def _write(self, name, content):
        self.done.append(("write", name, content))

    def files_after(self, count, *, lazy):
        """Return the files after `count` operations.

        A `lazy` disk has lost all content that was not flushed, and did every rename and removal
        at once: the order that hurts most.
        """
        files, flushed = {}, set()
        for operation in self.done[:count]:
            match operation:
                case ("create", name):
                    files[name] = b""
                case ("write", name, content):
                    files[name] += content
                case ("fsync", name) if name is not None:
                    flushed.add(name)
                case ("rename", source, target):
                    files[target] = files.pop(source)
                    if source in flushed:
                        flushed.add(target)
                case ("remove", name):
                    files.pop(name, None)
        if lazy:
            return {name: c if name in flushed else c[: len(c) // 2] for name, c in files.items()}
        return files


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("lazy", [False, True])
def test_after_every_single_operation_a_whole_checkpoint_can_be_read(
    tmp_path, monkeypatch, lazy, keep
):
    disk = Disk(monkeypatch)
    writer, run, complete = writer_of(tmp_path / "run", keep=keep), Run(), []
    for number in range(7):
        save(writer, run, best=number == 1 < keep)
        writer.wait()
        complete.append((len(disk.done), run.n_updates))
    monkeypatch.undo()
    assert {operation[0] for operation in disk.done} >= {"write", "fsync", "rename", "remove"}
    assert len(writer._journal.files) > 1
    folder = tmp_path / "after"
    folder.mkdir()
    for count in range(complete[0][0], len(disk.done) + 1):
        files = disk.files_after(count, lazy=lazy)
        for path in folder.iterdir():
            path.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        found = newest(open_folder(folder))
        check_whole(found)
        finished = max(update for operations, update in complete if operations <= count)
        assert update_of(found) >= finished
