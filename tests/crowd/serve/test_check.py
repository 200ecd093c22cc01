"""The command that reads a whole database."""

import os
import sqlite3

import pytest

from accelerando import cli
from accelerando.crowd.serve.check import check
from accelerando.crowd.store import Store
from accelerando.crowd.store.store import StoreError


def test_a_sound_database_has_all_its_answers(answered):
    assert check(answered.store) == {"eggs": 34}, "with repeats, without skips"


def test_an_answer_without_its_question_is_found(tmp_path, capsys):
    """SQLite's own check looks at pages and indexes only."""
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    command = ["crowd", "check", str(tmp_path)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == "The database is sound.\n"
    with sqlite3.connect(tmp_path / "crowd.sqlite") as plain:  # checks no references
        plain.execute("INSERT INTO answer (experiment_id, query_id, received) VALUES (1, 2, 3.0)")
    plain.close()
    store.check()
    with pytest.raises(StoreError, match="2 rows refer to rows that are missing, in answer"):
        check(store)
    store.close()
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "accelerando crowd restore BACKUP.zip FOLDER" in said
    assert said.count("\n") == 1


def test_damaged_pages_and_a_missing_database_are_one_sentence(tmp_path, capsys):
    assert cli.main(["crowd", "check", str(tmp_path)]) == 2
    assert "There is no database" in capsys.readouterr().err
    Store(f"sqlite:///{tmp_path}/crowd.sqlite").close()
    file = tmp_path / "crowd.sqlite"
    with file.open("r+b") as stream:
        stream.seek(8192)
        stream.write(os.urandom(40_000))
    assert cli.main(["crowd", "check", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "damaged" in said
    assert said.count("\n") == 1
