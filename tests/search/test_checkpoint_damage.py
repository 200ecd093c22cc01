"""Damaged files of a checkpoint are noticed, and nothing wrong is continued or unpickled."""

import pickle
import shutil
import struct

import numpy as np
import pytest
from scipy.stats import uniform
from sklearn.base import clone

from accelerando.exceptions import StateError
from accelerando.search import HyperbandSearchCV
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._records import read_records, record, sole_record
from accelerando.search._trust import TRUSTED, own_key

from .estimators import Counter


def test_a_torn_record_is_cut_off(data, tmp_path):
    options = {"client": None, "checkpoint": tmp_path, "random_state": 0, "max_iter": 9}
    space = {"slope": uniform(0, 1)}
    first = HyperbandSearchCV(Counter(), space, **options).fit(*data)
    log = tmp_path / "log.pickle"
    log.write_bytes(log.read_bytes()[:-7])
    second = HyperbandSearchCV(Counter(), space, **options).fit(*data)
    np.testing.assert_array_equal(first.cv_results_["test_score"], second.cv_results_["test_score"])


def test_a_state_that_was_being_written_is_removed(tmp_path):
    Checkpoint(tmp_path, {"search": "a"}, seed=1).close()
    half = tmp_path / "models" / ".3.pickle.abc.part"
    half.write_bytes(b"half")
    again = Checkpoint(tmp_path, {"search": "a"}, seed=2)
    assert not half.exists()
    assert again.seed == 1


def test_a_state_that_cannot_be_read_is_not_used(tmp_path):
    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    assert checkpoint.state(0) is None  # and there is nothing to say
    path = tmp_path / "models" / "0.pickle"
    no_state = pickle.dumps("no state")
    for content in (b"", b"garbage", no_state, record(no_state), record(no_state, own_key())):
        path.write_bytes(content)
        with pytest.warns(UserWarning, match=r"0\.pickle is damaged .* it is trained again"):
            assert checkpoint.state(0) is None


def planned(directory):
    """Return a search with a checkpoint that ended early, and one that continues."""
    options = {"client": None, "checkpoint": directory, "random_state": 0, "max_iter": 9}
    options["slice_seconds"] = 100
    space = {"slope": uniform(0, 1)}
    return (
        HyperbandSearchCV(Counter(), space, max_calls=40, **options),
        HyperbandSearchCV(Counter(), space, **options),
    )


@pytest.fixture
def ended_early(data, tmp_path):
    """The directory of a search that ended early, the next one, and its scores."""
    first, second = planned(tmp_path / "state")
    first.fit(*data)
    whole = clone(second).set_params(checkpoint=None).fit(*data)
    return tmp_path / "state", second, whole.cv_results_["test_score"]


@pytest.mark.parametrize(
    "place", ["mark", "length", "checksum", "check of the header", "signature", "payload"]
)
def test_a_damaged_state_is_trained_again(data, ended_early, place):
    directory, search, expected = ended_early
    paths = list((directory / "models").iterdir())
    assert len(paths) > 1
    position = {"mark": 1, "length": 9, "checksum": 15, "check of the header": 46}
    position |= {"signature": 50, "payload": 90}
    for path in paths:
        content = bytearray(path.read_bytes())
        content[position[place]] ^= 0x10
        path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"models/\d+\.pickle is damaged and is not used"):
        search.fit(*data)
    np.testing.assert_array_equal(search.cv_results_["test_score"], expected)
    assert search.best_estimator_.calls_ == 9


def ends_of(log):
    """Return the positions at which the records of a log end."""
    with log.open("rb") as file:
        return [file.tell() for _ in read_records(file, own_key())]


def test_a_damaged_record_is_refused_and_never_unpickled(data, ended_early, monkeypatch):
    directory, search, expected = ended_early
    log = directory / "log.pickle"
    whole, ends = log.read_bytes(), ends_of(log)
    assert len(ends) > 30
    third = ends[-3]  # the last but two records are damaged in turn
    loads = pickle.loads
    loaded = []
    for place in (1, 9, 15, 46, 50, 81, ends[-2] - third - 1):
        damaged = bytearray(whole)
        damaged[third + place] ^= 0x10
        log.write_bytes(damaged)
        loaded.clear()
        with monkeypatch.context() as patch:
            patch.setattr(pickle, "loads", lambda content: loaded.append(content) or loads(content))
            with pytest.raises(StateError, match=r"log\.pickle is damaged at byte") as error:
                search.fit(*data)
        assert str(log) in str(error.value)
        assert f"truncate -s {third} {log}" in str(error.value)
        assert [record(content, own_key()) for content in loaded] == [
            whole[start:end] for start, end in zip([0, *ends], ends[:-2], strict=False)
        ]
        assert log.read_bytes() == damaged
    with log.open("r+b") as file:  # the remedy that the message names
        file.truncate(third)
    search.fit(*data)
    np.testing.assert_array_equal(search.cv_results_["test_score"], expected)


def test_a_score_that_changed_on_the_disk_is_noticed(data, ended_early):
    """The pickle is as valid as before; only the checksum tells."""
    directory, search, _ = ended_early
    log = directory / "log.pickle"
    content = log.read_bytes()
    with log.open("rb") as file:
        scores = [
            row["score"]
            for kind, *values in map(pickle.loads, read_records(file, own_key()))
            if kind == "end"
            for row in values[2]
        ]
    stored = b"G" + struct.pack(">d", scores[-1])  # as a pickle has it
    assert stored in content
    log.write_bytes(content.replace(stored, b"G" + struct.pack(">d", 1e6)))
    with pytest.raises(StateError, match="is damaged at byte"):
        search.fit(*data)


def test_a_log_that_was_cut_continues(data, ended_early):
    directory, search, expected = ended_early
    log = directory / "log.pickle"
    kept = shutil.copytree(directory, directory.parent / "kept")
    ends = ends_of(log)
    for end in (ends[0], ends[1], ends[20], ends[-2], ends[-1]):
        for size in {end - 1, end, min(end + 1, ends[-1])}:
            shutil.rmtree(directory)
            shutil.copytree(kept, directory)
            with log.open("r+b") as file:
                file.truncate(size)
            search.fit(*data)
            np.testing.assert_array_equal(search.cv_results_["test_score"], expected)
            assert ends_of(log)[-1] == log.stat().st_size  # nothing of the torn record is left


def test_states_whose_log_is_gone_are_not_used(tmp_path):
    Checkpoint(tmp_path, {"search": "a"}, seed=0).close()
    state = tmp_path / "models" / "0.pickle"
    state.write_bytes(record(b"of the search a"))
    Checkpoint(tmp_path, {"search": "a"}, seed=0).close()
    assert state.exists()
    (tmp_path / "log.pickle").unlink()
    Checkpoint(tmp_path, {"search": "b"}, seed=0).close()
    assert not state.exists()


def without_checksums(directory, monkeypatch):
    """Write the files as versions without checksums did, in a directory that the user trusts."""
    monkeypatch.setenv(TRUSTED, str(directory))
    log = directory / "log.pickle"
    with log.open("rb") as file:
        log_before = b"".join(read_records(file, own_key()))
    log.write_bytes(log_before)
    for path in (directory / "models").iterdir():
        path.write_bytes(sole_record(path.read_bytes(), own_key()))


@pytest.mark.parametrize("torn", [0, 1, 7])
def test_a_directory_without_checksums_gets_them(data, ended_early, torn, monkeypatch):
    directory, search, expected = ended_early
    without_checksums(directory, monkeypatch)
    log = directory / "log.pickle"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - torn)
    search.fit(*data)
    np.testing.assert_array_equal(search.cv_results_["test_score"], expected)
    assert ends_of(log)[-1] == log.stat().st_size


def test_a_damaged_log_without_checksums_is_refused(data, ended_early, monkeypatch):
    directory, search, _ = ended_early
    without_checksums(directory, monkeypatch)
    log = directory / "log.pickle"
    damaged = log.read_bytes().replace(b"slope", b"sl\xff\xffe")
    log.write_bytes(damaged)
    with pytest.raises(StateError, match=r"log\.pickle is damaged at byte 0\. Delete"):
        search.fit(*data)
    assert log.read_bytes() == damaged


def test_a_record_that_needs_a_missing_module_is_refused(tmp_path):
    Checkpoint(tmp_path, {}, seed=0).close()
    with (tmp_path / "log.pickle").open("ab") as log:
        log.write(record(b"cno_such_module\nname\n.", own_key()))
    with pytest.raises(
        StateError, match=r"log\.pickle cannot be read \(ModuleNotFoundError: .*no_s"
    ):
        Checkpoint(tmp_path, {}, seed=0)


@pytest.mark.parametrize("name", [".", "models", "log.pickle", "models/0.pickle"])
def test_nothing_that_others_can_write_is_unpickled(tmp_path, name):
    class Evil:
        def __reduce__(self):
            return (tmp_path / "pwned").touch, ()

    Checkpoint(tmp_path, {}, seed=0).close()
    target = tmp_path / ("log.pickle" if name in (".", "models") else name)
    target.write_bytes(pickle.dumps(Evil()))
    (tmp_path / name).chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by everybody"):
        Checkpoint(tmp_path, {}, seed=0).state(0)
    assert not (tmp_path / "pwned").exists()
