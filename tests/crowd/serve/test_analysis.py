"""Analyses: the same map from the same archive, bit for bit, or a sentence."""

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from accelerando import cli
from accelerando.crowd.experiment import Files, make_experiment, read_yaml
from accelerando.crowd.serve import analysis
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, archive, experiments, participants, published, session

EGGS = """
name: eggs
items: 9
participants: {answers: 40}
checks: {repeat_every: 7}
samplers: {random: {class: Random}}
embedding: {warmup: 20}
"""


def written(store, name):
    with store.read() as connection:
        stream = io.BytesIO()
        archive.write_archive(connection, experiments.find(connection, name), stream)
        return stream.getvalue()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The archive of a study with four people, one of them blocked, before and after more."""
    folder = tmp_path_factory.mktemp("study")
    store = Store(f"sqlite:///{folder}/crowd.sqlite")
    with store.write() as connection:
        secret = store.secret(connection)
        experiments.add(connection, make_experiment(read_yaml(EGGS), Files()), time.time())
    clock = 1000.0

    def do(function, *arguments):
        with store.write() as connection:
            return function(connection, *arguments)

    def take_part(name):
        nonlocal clock
        parameters = {"participant": name}
        standing = do(session.begin, "eggs", secret, parameters, "", None, 2, clock)
        token = participants.token(secret, standing.snapshot, standing.person)
        while standing.queries:
            query, clock = standing.queries[0], clock + 1
            near = min((query.left, query.right), key=lambda item: abs(item - query.head))
            given = (int(query.id), near, 1.0, 0.1, 2, clock)
            standing = do(session.answer, "eggs", secret, token, *given)
        return standing.person

    people = [take_part(name) for name in ("anna", "bert", "carl", "dora")]
    with store.read() as connection:
        snapshot = experiments.find(connection, "eggs")
    do(participants.set_blocked, snapshot, people[3].id, True)
    Worker(store).turn()
    (folder / "a.zip").write_bytes(written(store, "eggs"))
    with store.read() as connection:
        used = published.new_answers(connection, snapshot.frame.id, 0)
    take_part("emma")
    (folder / "more.zip").write_bytes(written(store, "eggs"))
    store.close()
    return folder, len(used)


def run(*arguments, **env):
    """The command in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "accelerando", "crowd", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_two_processes_find_the_same_bits(study):
    folder, used = study
    file = folder / "analysis.json"
    code, out, err = run("analyze", folder / "a.zip", "-o", file, OMP_NUM_THREADS="2")
    assert code == 0, err
    saved = json.loads(file.read_text())
    assert saved["answers"]["used"] == used == 120, "those that the dashboard and the worker use"
    assert saved["answers"]["left_out"] == {"blocked": 46, "repeat": 18}
    assert saved["starts_from_the_dashboard"]
    assert saved["versions"]["numpy"] == np.__version__
    assert "120 answers of 3 participants" in out
    code, out, err = run(
        *("reproduce", folder / "a.zip", file, "--map", folder / "map.csv"), OMP_NUM_THREADS="1"
    )
    assert code == 0, err
    assert "bit for bit" in out
    rows = (folder / "map.csv").read_text().splitlines()
    assert [float(x) for x in rows[1].split(",")[2:]] == saved["map"][0]


@pytest.fixture(scope="module")
def saved(study):
    """An analysis of the archive, without anna."""
    folder, _ = study
    one = archive.read_archive((folder / "a.zip").read_bytes())
    return one, analysis.analyze(one, exclude=["anna"], changes={"noise": "ste"}, seed=3)


def test_an_analysis_says_what_was_left_out_and_is_refused_if_anything_differs(study, saved):
    folder, _ = study
    one, made = saved
    assert made["answers"]["left_out"]["excluded"] == 40
    assert (made["noise"], made["seed"], made["exclude"]) == ("ste", 3, ["anna"])
    assert analysis.reproduce(one, made)["sha256"] == made["sha256"]
    more = archive.read_archive((folder / "more.zip").read_bytes())
    with pytest.raises(ValueError, match="80 answers counted then, 120 in the archive"):
        analysis.reproduce(more, made)
    old = made | {"versions": made["versions"] | {"numpy": "1.0"}}
    with pytest.raises(ValueError, match=r"numpy '1\.0', here"):
        analysis.reproduce(one, old)
    edited = json.loads(json.dumps(made))
    edited["map"][0][0] = float(np.nextafter(made["map"][0][0], 9))
    with pytest.raises(ValueError, match="The map differs"):
        analysis.reproduce(one, edited)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("versions", []), ("answers", 7), ("exclude", [[]]), ("exclude", 7), ("map", "x"),
        ("map", [["x"]]), ("map", [[1.0]]), ("seed", "x"), ("seed", -1),
        pytest.param("seed", 10**400, id="large seed"),
        ("embedding", []), ("embedding", {"dimensions": 10**9}),
    ],
)  # fmt: skip
def test_an_analysis_that_somebody_has_edited_is_one_sentence(
    study, saved, tmp_path, capsys, monkeypatch, entry, value
):
    folder, _ = study
    fit = (lambda *_: {"map": saved[1]["map"]}) if entry == "map" else analysis.fit
    monkeypatch.setattr(analysis, "_fit", fit)  # not in a process of its own
    (tmp_path / "j.json").write_text(json.dumps(saved[1] | {entry: value}))
    arguments = ["reproduce", str(folder / "a.zip"), str(tmp_path / "j.json")]
    assert cli.main(["crowd", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["analyze", "{a}", "--exclude", "nobody"], "no participant 'nobody'"),
        (["analyze", "{a}", "--noise", "tsne"], "crowd analyze: noise"),
        (["analyze", "{a}", "--noise", "ste", "--alpha", "2"], "alpha is a parameter of"),
        (["analyze", "{j}"], "This archive cannot be restored"),
        (["reproduce", "{a}", "{a}"], "is not a file of `crowd analyze`"),
        (["reproduce", "{a}", "{j}"], "must have format 1"),
    ],
)
def test_what_cannot_be_analyzed_is_one_sentence(study, capsys, tmp_path, arguments, says):
    folder, _ = study
    (tmp_path / "j.json").write_text("{}")
    places = {"a": folder / "a.zip", "j": tmp_path / "j.json"}
    filled = [text.format(**places) for text in arguments]
    more = ["-o", str(tmp_path / "x.json")] if filled[0] == "analyze" else []
    assert cli.main(["crowd", *filled, *more]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said
    assert not (tmp_path / "x.json").exists()
