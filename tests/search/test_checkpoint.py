"""A search that is killed goes on where it was."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter as Count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client
from scipy.stats import uniform

from accelerando.search import AsyncHalvingSearchCV, HyperbandSearchCV
from accelerando.search._checkpoint import Checkpoint

from .estimators import Counter, Logged

HERE = os.path.dirname(__file__)


def search(cls, log, **options):
    return cls(Logged(log=str(log)), {"slope": uniform(0, 1)}, max_iter=9, client=None, **options)


def calls_in(path):
    """How often each call of each model was made."""
    return Count(line.rsplit(" ", 1)[0] for line in path.read_text().split("\n")[:-1])


@pytest.mark.parametrize("cls", [HyperbandSearchCV, AsyncHalvingSearchCV])
@pytest.mark.parametrize("seed", [0, None])
def test_a_stopped_search_is_continued_without_repeating_a_call(cls, seed, data, tmp_path):
    log, directory = tmp_path / "log", tmp_path / "state"
    options = {"checkpoint": directory, "random_state": seed, "slice_seconds": 100}
    if cls is AsyncHalvingSearchCV:
        options["n_initial_parameters"] = 30
    first = search(cls, log, max_calls=40, **options).fit(*data)
    assert first.metadata_["partial_fit_calls"] == 40
    second = search(cls, log, **options).fit(*data)
    counts = calls_in(log)
    assert max(counts.values()) <= 2
    # only the job that max_calls cut in the middle is trained again
    assert sum(counts.values()) - len(counts) < 9
    assert len(counts) == second.metadata_["partial_fit_calls"]
    if seed is not None:
        whole = search(cls, tmp_path / "other", **{**options, "checkpoint": None}).fit(*data)
        np.testing.assert_array_equal(
            whole.cv_results_["test_score"], second.cv_results_["test_score"]
        )
    third = search(cls, log, **options).fit(*data)
    assert calls_in(log) == counts  # nothing is left to do
    assert third.best_params_ == second.best_params_
    assert third.best_estimator_.calls_ == 9


def test_a_killed_process_is_continued(tmp_path):
    log, directory = tmp_path / "log", tmp_path / "state"
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import numpy as np
            from scipy.stats import uniform
            from accelerando.search import HyperbandSearchCV
            from tests.search.estimators import Logged
            search = HyperbandSearchCV(
                Logged(seconds=0.005, log={str(log)!r}), {{"slope": uniform(0, 1)}}, max_iter=27,
                checkpoint={str(directory)!r}, random_state=0, priority="fifo", slice_seconds=100,
            ).fit(np.zeros((50, 2)), np.zeros(50))
            print(search.metadata_["partial_fit_calls"], search.best_score_)
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(HERE))}
    command = [sys.executable, str(script)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    while process.poll() is None and (not log.exists() or len(calls_in(log)) < 100):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = calls_in(log)
    again = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert again.stdout.startswith("357 ")
    after = calls_in(log)
    assert len(after) == 357
    # a rung of 27 calls at most was under way: nothing before it is repeated
    assert sum(after.values()) - len(after) <= 27
    assert len(before) >= 100


def test_a_directory_of_another_search_is_refused(data, tmp_path):
    options = {"client": None, "checkpoint": tmp_path, "random_state": 0}
    HyperbandSearchCV(Counter(), {"slope": [0.1]}, max_iter=3, **options).fit(*data)
    with pytest.raises(ValueError, match=r"belongs to another search \(plan"):
        HyperbandSearchCV(Counter(), {"slope": [0.1]}, max_iter=9, **options).fit(*data)


def test_a_directory_of_version_0_1_is_continued(data, tmp_path, monkeypatch):
    """That version wrote `data/checkpoint_0_1` with ``max_calls=40`` of 69."""
    directory = shutil.copytree(Path(HERE) / "data" / "checkpoint_0_1", tmp_path / "state")
    options = {"client": None, "random_state": 0, "max_iter": 9, "slice_seconds": 100}
    space = {"slope": uniform(0, 1)}
    whole = HyperbandSearchCV(Counter(), space, **options).fit(*data)
    made = []
    train = Counter.partial_fit
    monkeypatch.setattr(
        Counter, "partial_fit", lambda model, X, y=None: made.append(1) or train(model, X, y)
    )
    resumed = HyperbandSearchCV(Counter(), space, checkpoint=directory, **options).fit(*data)
    np.testing.assert_array_equal(
        whole.cv_results_["test_score"], resumed.cv_results_["test_score"]
    )
    assert resumed.best_estimator_.calls_ == 9
    assert len(made) < 69 - 40 + 9  # the finished jobs are not trained again


def test_a_torn_record_is_cut_off(data, tmp_path):
    options = {"client": None, "checkpoint": tmp_path, "random_state": 0, "max_iter": 9}
    space = {"slope": uniform(0, 1)}
    first = HyperbandSearchCV(Counter(), space, **options).fit(*data)
    log = tmp_path / "log.pickle"
    log.write_bytes(log.read_bytes()[:-7])
    second = HyperbandSearchCV(Counter(), space, **options).fit(*data)
    np.testing.assert_array_equal(first.cv_results_["test_score"], second.cv_results_["test_score"])


def test_a_state_that_was_being_written_is_removed(tmp_path):
    Checkpoint(tmp_path, {"search": "a"}, seed=1)
    half = tmp_path / "models" / ".3.pickle.abc.part"
    half.write_bytes(b"half")
    again = Checkpoint(tmp_path, {"search": "a"}, seed=2)
    assert not half.exists()
    assert again.seed == 1


def test_records_are_on_disk_before_the_search_continues(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(descriptor):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    monkeypatch.setattr(os, "fsync", record)
    checkpoint.save_params({0: {"slope": 1.0}, 1: {"slope": 2.0}})
    assert synced == ["log.pickle"]
    synced.clear()
    checkpoint.save_end(0, 3, False, [{"score": 1.0}], SimpleNamespace(pickled=lambda model: b"x"))
    state, models, log = synced
    assert state.startswith(".0.pickle.")
    assert (models, log) == ("models", "log.pickle")


def test_a_job_is_logged_with_its_new_rows_only(tmp_path):
    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    workers = SimpleNamespace(pickled=lambda model: None)
    rows = [{"score": 1.0}, {"score": 2.0}]
    checkpoint.save_end(0, 1, False, rows[:1], workers)
    checkpoint.save_end(0, 3, True, rows, workers)
    again = Checkpoint(tmp_path, {}, seed=0)
    assert again.end_of(0, 1) == (rows[:1], False)
    assert again.end_of(0, 3) == (rows[1:], True)
    assert again.end_of(0, 9) is None
    again.save_end(0, 9, False, [*rows, {"score": 3.0}], workers)
    assert Checkpoint(tmp_path, {}, seed=0).end_of(0, 9) == ([{"score": 3.0}], False)


def test_a_state_that_cannot_be_read_is_none(tmp_path):
    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    assert checkpoint.state(0) is None
    for content in (b"", b"garbage", pickle.dumps("no state")):
        (tmp_path / "models" / "0.pickle").write_bytes(content)
        assert checkpoint.state(0) is None


def test_states_of_dropped_models_are_deleted(data, tmp_path):
    HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, max_iter=9, client=None, checkpoint=tmp_path
    ).fit(*data)
    assert len(list((tmp_path / "models").iterdir())) == 1  # the winner


def test_a_checkpoint_moves_between_this_process_and_a_cluster(data, client, tmp_path):
    options = {"checkpoint": tmp_path, "random_state": 0, "max_iter": 9}
    space = {"slope": uniform(0, 1)}
    HyperbandSearchCV(Counter(), space, client=None, max_calls=40, **options).fit(*data)
    search = HyperbandSearchCV(Counter(), space, client=client, **options).fit(*data)
    assert isinstance(client, Client)
    assert search.metadata == search.metadata_
    assert search.best_estimator_.calls_ == 9
