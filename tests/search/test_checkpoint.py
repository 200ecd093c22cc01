"""A search that is killed goes on where it was."""

import contextlib
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
from scipy.stats import loguniform, uniform
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.model_selection import cross_val_score

from accelerando.exceptions import StateError
from accelerando.search import AsyncHalvingSearchCV, HyperbandSearchCV
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._records import read_records
from accelerando.search._trust import TRUSTED

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
    for rows in second.model_history_.values():  # in order, also across the two searches
        assert (np.diff([row["partial_fit_calls"] for row in rows]) > 0).all()
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
    paths = [os.path.dirname(os.path.dirname(HERE)), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(script)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    while process.poll() is None and (
        not log.exists() or len(calls_in(log)) < 100 or len(saved_calls(directory)) < 9
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before, saved = calls_in(log), saved_calls(directory)
    again = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert again.stdout.startswith("357 ")
    after = calls_in(log)
    assert len(after) == 357
    # what was written is not repeated; what was under way or waited for the disk is
    assert len(saved) >= 9
    assert {call: after[call] for call in saved} == dict.fromkeys(saved, 1)
    assert set(after.values()) <= {1, 2}
    assert len(before) >= 100


def saved_calls(directory):
    """Return the calls of the finished jobs that the log of a search contains."""
    path = directory / "log.pickle"
    slopes, calls = {}, set()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as log:
        for kind, *values in map(pickle.loads, read_records(log, None)):
            if kind == "params":
                slopes[values[0]] = values[1]["slope"]
            elif kind == "end":
                calls |= {f"{slopes[values[0]]!r} {call}" for call in range(1, values[1] + 1)}
    return calls


def test_a_directory_of_another_search_is_refused(data, tmp_path):
    options = {"client": None, "checkpoint": tmp_path, "random_state": 0}
    HyperbandSearchCV(Counter(), {"slope": [0.1]}, max_iter=3, **options).fit(*data)
    with pytest.raises(ValueError, match=r"belongs to another search \(max_iter: saved 3, now 9;"):
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
    with pytest.raises(StateError, match=r"log\.pickle was not written with your key"):
        HyperbandSearchCV(Counter(), space, checkpoint=directory, **options).fit(*data)
    monkeypatch.setenv(TRUSTED, str(directory))
    with pytest.warns(UserWarning, match="written by version 0.1, which did not record the data"):
        resumed = HyperbandSearchCV(Counter(), space, checkpoint=directory, **options).fit(*data)
    np.testing.assert_array_equal(
        whole.cv_results_["test_score"], resumed.cv_results_["test_score"]
    )
    assert resumed.best_estimator_.calls_ == 9
    assert len(made) < 69 - 40 + 9  # the finished jobs are not trained again
    with pytest.raises(ValueError, match=r"another search \(X: saved ndarray .*, now ndarray"):
        HyperbandSearchCV(Counter(), space, checkpoint=directory, **options).fit(-data[0], data[1])


def test_records_are_on_disk_before_the_search_continues(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(descriptor):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def pickled(model):
        return lambda: b"x"

    monkeypatch.setattr(os, "fsync", record)
    checkpoint = Checkpoint(tmp_path / "new", {}, seed=0)
    assert synced == [tmp_path.name, "new", "log.pickle", "new"]
    synced.clear()
    checkpoint.save_params({0: {"slope": 1.0}, 1: {"slope": 2.0}})
    assert synced == ["log.pickle"]
    synced.clear()
    checkpoint.save_end(0, 3, False, [{"score": 1.0}], SimpleNamespace(pickled=pickled))
    checkpoint.flush()
    state, models, log = synced
    assert state.startswith(".0.pickle.")
    assert (models, log) == ("models", "log.pickle")


def test_a_job_is_logged_with_its_new_rows_only(tmp_path):
    checkpoint = Checkpoint(tmp_path, {}, seed=0)
    workers = SimpleNamespace(pickled=lambda model: lambda: None)
    rows = [{"score": 1.0}, {"score": 2.0}]
    checkpoint.save_end(0, 1, False, rows[:1], workers)
    checkpoint.save_end(0, 3, True, rows, workers)
    checkpoint.close()
    again = Checkpoint(tmp_path, {}, seed=0)
    assert again.end_of(0, 1) == (rows[:1], False)
    assert again.end_of(0, 3) == (rows[1:], True)
    assert again.end_of(0, 9) is None
    again.save_end(0, 9, False, [*rows, {"score": 3.0}], workers)
    again.close()
    last = Checkpoint(tmp_path, {}, seed=0)
    assert last.end_of(0, 9) == ([{"score": 3.0}], False)


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


def test_a_directory_is_used_by_one_search_at_a_time(tmp_path):
    first = Checkpoint(tmp_path, {}, seed=0)
    with pytest.raises(RuntimeError, match="used by a search that is running"):
        Checkpoint(tmp_path, {}, seed=0)
    first.close()
    Checkpoint(tmp_path, {}, seed=0).close()


def test_folds_of_noise_do_not_share_a_checkpoint(tmp_path):
    random = np.random.RandomState(0)
    X, y = random.randn(300, 10), random.randint(2, size=300)
    search = HyperbandSearchCV(
        SGDClassifier(), {"alpha": loguniform(1e-5, 1)}, max_iter=9, random_state=0, client=None
    )
    expected = cross_val_score(search, X, y, cv=3)
    np.testing.assert_array_equal(
        cross_val_score(clone(search).set_params(checkpoint=tmp_path), X, y, cv=3), expected
    )
    assert abs(np.mean(expected) - 0.5) < 0.1
    search.set_params(checkpoint=tmp_path).fit(X, y)
    again = clone(search).fit(X, y)  # has a directory of its own
    assert len(list((tmp_path / "clones").iterdir())) == 4
    assert again.best_score_ == search.best_score_


def weighted(model, X, y):
    return model.score(X, y)


SETTINGS = {"client": None, "random_state": 0, "max_iter": 3, "scoring": weighted}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"y": "flipped"}, "y: saved ndarray"),
        ({"X": "one number"}, "X: saved ndarray"),
        ({"weight": 2.0}, "fit parameter 'sample_weight'"),
        ({"estimator": SGDClassifier(alpha=0.5)}, "estimator parameter 'alpha': saved 0.0001, now"),
        ({"estimator": SGDRegressor()}, "estimator: saved"),
        ({"parameters": {"eta0": [0.1, 0.3]}}, r"parameters\['eta0'\]: saved \[0.1, 0.2\], now"),
        ({"scoring": lambda model, X, y: 1.0}, "scoring: saved function"),
        ({"test_size": 0.3}, "test_size: saved None, now 0.3"),
        ({"chunk_size": 50}, "chunk_size"),
        ({"random_state": 1}, "random_state: saved 0, now 1"),
        ({"tol": 0.1}, "tol: saved 0.001, now 0.1"),
        ({"patience": True}, "patience"),
        ({"error_score": 0.0}, "error_score: saved nan, now 0.0"),
        ({"aggressiveness": 2}, "aggressiveness"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_changes_results_makes_another_search(data, tmp_path, change, named):
    X, y = data[0], (data[1] > 0).astype(int)
    weight = np.ones(len(y))
    options = {"estimator": SGDClassifier(eta0=0.1), "parameters": {"eta0": [0.1, 0.2]}, **SETTINGS}
    first = HyperbandSearchCV(**options, checkpoint=tmp_path, max_calls=1)
    first.fit(X, y, sample_weight=weight)
    if "y" in change:
        y = 1 - y
    elif "X" in change:
        X = X.copy()
        X[7, 3] += 1e-9
    elif "weight" in change:
        weight[5] = change["weight"]
    else:
        options |= change
    second = HyperbandSearchCV(**options, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=f"belongs to another search .*{named}"):
        second.fit(X, y, sample_weight=weight)


def test_what_changes_no_result_does_not(data, tmp_path, client):
    options = {"client": None, "random_state": 0, "max_iter": 9, "checkpoint": tmp_path}
    space = {"slope": uniform(0, 1)}
    HyperbandSearchCV(Counter(), space, **options, max_calls=40).fit(*data)
    options |= {"client": client, "priority": "fifo", "slice_seconds": 3, "max_seconds": 500}
    again = HyperbandSearchCV(Counter(), {"slope": uniform(0, 1)}, **options).fit(*data)
    assert again.metadata == again.metadata_


@pytest.mark.parametrize("wrong", [5, b"bytes"])
def test_a_checkpoint_that_is_no_path_is_refused(data, wrong):
    search = HyperbandSearchCV(Counter(), {"slope": uniform(0, 1)}, client=None, checkpoint=wrong)
    with pytest.raises(ValueError, match=r"'checkpoint' parameter .* the path of a directory"):
        search.fit(*data)


def test_a_checkpoint_that_is_a_file_is_refused(data, tmp_path):
    (tmp_path / "file").touch()
    search = HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, client=None, checkpoint=tmp_path / "file"
    )
    with pytest.raises(NotADirectoryError, match=r"is a file\. Pass a directory"):
        search.fit(*data)
