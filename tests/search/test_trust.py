"""Nobody can make a search run code by a checkpoint, if its user does not trust it."""

import os
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import uniform

from accelerando.exceptions import StateError
from accelerando.search import HyperbandSearchCV
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._records import record
from accelerando.search._trust import TRUSTED, is_trusted, key_path, own_key

from .estimators import Counter


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return self.target.touch, ()


@pytest.fixture
def become(monkeypatch, tmp_path):
    """Return a function after which this process has the key of somebody."""
    return lambda name: monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / f"home-{name}"))


def search(directory, **options):
    return HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, client=None, checkpoint=directory, random_state=0,
        max_iter=9, slice_seconds=100, **options,
    )  # fmt: skip


def test_a_directory_of_somebody_else_is_refused_until_it_is_trusted(
    data, tmp_path, become, monkeypatch
):
    whole = search(None).fit(*data).cv_results_["test_score"]
    become("alice")
    search(tmp_path / "state", max_calls=40).fit(*data)
    become("bob")
    copied = shutil.copytree(tmp_path / "state", tmp_path / "bobs" / "copy")
    before = (copied / "log.pickle").read_bytes()
    with pytest.raises(StateError, match="not written with your key") as error:
        search(copied).fit(*data)
    assert f"{TRUSTED}={copied.resolve()}" in str(error.value)
    assert (copied / "log.pickle").read_bytes() == before
    monkeypatch.setenv(TRUSTED, f"/nowhere{os.pathsep}{copied.parent}")
    continued = search(copied).fit(*data)
    np.testing.assert_array_equal(continued.cv_results_["test_score"], whole)
    monkeypatch.delenv(TRUSTED)  # now it is signed with the key of bob, and no warning is raised
    again = search(copied).fit(*data)
    np.testing.assert_array_equal(again.cv_results_["test_score"], whole)
    become("alice")
    with pytest.raises(StateError, match="not written with your key"):
        search(copied).fit(*data)


@pytest.mark.parametrize("signed", ["plain", "no key", "key of the attacker"])
@pytest.mark.parametrize("name", ["log.pickle", "models/0.pickle"])
def test_a_hostile_file_runs_nothing(tmp_path, become, name, signed):
    directory = tmp_path / "state"
    become("attacker")
    evil = pickle.dumps(Evil(tmp_path / "pwned"))
    content = {
        "plain": evil, "no key": record(evil), "key of the attacker": record(evil, own_key())
    }[signed]  # fmt: skip
    become("victim")
    Checkpoint(directory, {}, seed=0).close()
    (directory / name).write_bytes(content)
    if name == "log.pickle":
        with pytest.raises(StateError, match="not written with your key"):
            Checkpoint(directory, {}, seed=0)
    else:
        with pytest.warns(UserWarning, match=r"0\.pickle is damaged and is not used"):
            assert Checkpoint(directory, {}, seed=0).state(0) is None
    assert not (tmp_path / "pwned").exists()


def test_a_hostile_record_after_own_ones_runs_nothing(tmp_path):
    Checkpoint(tmp_path, {}, seed=0).close()
    log, evil = tmp_path / "log.pickle", pickle.dumps(Evil(tmp_path / "pwned"))
    own = log.read_bytes()
    for content in (record(evil), evil + bytes(100), record(evil, bytes(32))):
        log.write_bytes(own + content)
        with pytest.raises(StateError, match="is damaged at byte"):
            Checkpoint(tmp_path, {}, seed=0)
        assert not (tmp_path / "pwned").exists()


def test_a_key_is_made_once_and_nobody_else_can_read_it(become):
    become("new")
    keys = set()
    threads = [threading.Thread(target=lambda: keys.add(own_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (key,) = keys
    assert len(key) == 32
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in key_path().parent.iterdir()] == ["checkpoint-key"]
    become("other")
    assert own_key() != key


@pytest.mark.parametrize("wrong", ["readable", "short", "no folder"])
def test_a_key_that_is_no_secret_is_not_used(become, wrong):
    become("careless")
    own_key()
    path = key_path()
    if wrong == "readable":
        path.chmod(0o644)
    elif wrong == "short":
        path.write_bytes(b"short")
    else:
        shutil.rmtree(path.parent)
        path.parent.write_text("a file")
    with pytest.raises(PermissionError, match=f"(?s)key that only you can read.*{TRUSTED}"):
        own_key()
    assert own_key(needed=False) == b""


def test_without_a_key_only_a_trusted_folder_can_be_used(tmp_path, become, monkeypatch):
    become("nobody")
    Path(os.environ["XDG_CONFIG_HOME"]).write_text("a file")
    with pytest.raises(PermissionError, match="checkpoint of a search needs a key"):
        Checkpoint(tmp_path / "state", {}, seed=1)
    assert not (tmp_path / "state").exists()
    monkeypatch.setenv(TRUSTED, str(tmp_path))
    Checkpoint(tmp_path / "state", {}, seed=1).close()
    again = Checkpoint(tmp_path / "state", {}, seed=2)
    assert again.seed == 1
    again.close()


def test_a_folder_is_trusted_with_what_is_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv(TRUSTED, str(tmp_path / "a"))
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert is_trusted(tmp_path / "a")
    assert is_trusted(tmp_path / "b" / "state")
    assert not is_trusted(tmp_path / "a" / ".." / "c")
    assert not is_trusted(tmp_path / "ab")
    monkeypatch.setenv(TRUSTED, "")
    assert not is_trusted(Path.cwd())
