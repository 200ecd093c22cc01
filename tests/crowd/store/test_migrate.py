"""Migrations of the schema."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, text

from accelerando.crowd.store import Store, experiments, participants
from accelerando.crowd.store.migrate import migrate
from accelerando.crowd.store.schema import SCHEMA_VERSION, participant, tables
from accelerando.exceptions import StateError


def test_migrations_run_in_order_and_once(store):
    ran = []
    steps = {v: lambda connection, v=v: ran.append(v) for v in (8, 9)}
    with store.write() as connection:
        connection.execute(text("UPDATE meta SET value = '7' WHERE key = 'schema'"))
        migrate(connection, steps, to=9)
        migrate(connection, steps, to=9)
    assert ran == [8, 9]


def test_a_step_that_fails_leaves_the_database_as_it_was(store):
    def fail(connection):
        connection.execute(text("CREATE TABLE half (x INTEGER)"))
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError), store.write() as connection:
        migrate(connection, {SCHEMA_VERSION + 1: fail}, to=SCHEMA_VERSION + 1)
    with store.write() as connection:
        ran = []
        migrate(connection, {SCHEMA_VERSION + 1: lambda c: ran.append(2)}, to=SCHEMA_VERSION + 1)
    assert ran == [2]


def test_a_database_of_the_future_is_refused(store):
    with store.write() as connection:
        connection.execute(text("UPDATE meta SET value = '99' WHERE key = 'schema'"))
    with pytest.raises(StateError, match="version 99"):
        Store(store.url)


def indexes(store):
    """Names of the indexes of answers."""
    return {index["name"] for index in inspect(store.engine).get_indexes("answer")}


def columns(store):
    """Names of the columns of every table."""
    found = inspect(store.engine)
    return {name: {c["name"] for c in found.get_columns(name)} for name in found.get_table_names()}


def test_a_database_of_version_1_is_upgraded_with_its_data(tmp_path):
    """The file was written by the version that had schema 1."""
    file = tmp_path / "crowd.sqlite"
    old = sqlite3.connect(file)
    old.executescript((Path(__file__).parent / "schema_v1.sql").read_text())
    old.close()
    store = Store(f"sqlite:///{file}")
    assert columns(store) == {
        name: set(table.columns.keys()) for name, table in tables.tables.items()
    }
    with store.read() as connection:
        person = connection.execute(text("SELECT * FROM participant")).one()
        assert (person.external, person.answered, person.withdrawn) == ("104", 1, None)
        assert not person.proven
        # Who had an account may still do everything.
        assert connection.execute(text("SELECT admin FROM experimenter")).scalars().all() == [1]
        assert connection.execute(text("SELECT count(*) FROM answer")).scalar_one() == 1
    store.close()
    again = Store(f"sqlite:///{file}")
    again.close()


def test_version_1_is_upgraded_on_every_database(store):
    new = {
        "experiment": ("declined",),
        "participant": (
            *("withdrawn", "proven", "browser"),
            *("secret", "extra", "quota", "code_used"),
        ),
        "worker": ("beat",),
        "experimenter": ("admin", "must_change", "totp", "totp_step"),
        "session": ("created", "seen"),
        "media": ("source",),
    }
    present = columns(store)
    assert "answer_order" in indexes(store)
    with store.write(migrating=True) as connection:
        connection.execute(text("DROP INDEX answer_order"))
        for table in ("role", "api_token", "media_copy"):
            connection.execute(text(f'DROP TABLE "{table}"'))
        for table, names in new.items():
            for name in names:
                connection.execute(text(f'ALTER TABLE "{table}" DROP COLUMN "{name}"'))
        connection.execute(text("UPDATE meta SET value = '1' WHERE key = 'schema'"))
        assert migrate(connection) == 1
    assert columns(store) == present
    assert "answer_order" in indexes(store)


# Tokens of a database of version 4: of anna, and of bert, who got the id of somebody deleted.
ANNA = "1.1.50d4776b1dfd695129c4db293af3f6a07597143f26f537541ab1832abd14893f"
BERT = "1.3.36d3819358a684f9390308b4c4a23855bd0ea2851d34b5402602b84e0b42a3fd"


@pytest.fixture
def of_version_4(tmp_path):
    """The file was written by the version that had schema 4."""
    file = tmp_path / "crowd.sqlite"
    old = sqlite3.connect(file)
    old.executescript((Path(__file__).parent / "schema_v4.sql").read_text())
    old.close()
    store = Store(f"sqlite:///{file}")
    yield store
    store.close()


def test_a_database_of_version_4_is_upgraded_with_its_data(of_version_4):
    with of_version_4.read() as connection:
        people = connection.execute(select(participant).order_by(participant.c.id)).all()
        (number,) = connection.execute(text("SELECT declined FROM experiment")).scalars()
        roles = connection.execute(text("SELECT count(*) FROM role")).scalar_one()
        served = connection.execute(text("SELECT DISTINCT participant_id FROM served")).scalars()
        assert set(served) == {1, 3}
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    assert [one.name for one in people] == ["anna", "bert"], "nothing of who refused consent"
    assert (number, roles) == (1, 1)
    assert (people[0].answered, people[0].extra, people[0].quota) == (2, 2, 6)
    assert columns(of_version_4)["participant"] == set(participant.columns.keys())
    with of_version_4.write() as connection:
        secret = of_version_4.secret(connection)
        connection.execute(text("DELETE FROM participant WHERE id = 3"))
        snapshot = experiments.find(connection, "eggs")
        new = participants.join(connection, snapshot, secret, {}, "", None, 2000.0)
    assert new.id == 4, "and no id is given again"


def test_sessions_go_on_after_an_upgrade_except_on_a_reused_id(of_version_4):
    with of_version_4.write() as connection:
        secret = of_version_4.secret(connection)
        snapshot = experiments.find(connection, "eggs")
        anna = participants.authenticate(connection, secret, snapshot, ANNA)
        bert = participants.authenticate(connection, secret, snapshot, BERT)
    assert anna.name == "anna"
    assert bert is None, "the token of a deleted person would open this session"


def test_tables_are_not_rebuilt_while_their_rows_would_be_lost(of_version_4):
    """With foreign keys, dropping the old table would delete all answers."""
    with (
        pytest.raises(StateError, match="foreign_keys = OFF"),
        of_version_4.write() as connection,
    ):
        connection.execute(text("UPDATE meta SET value = '5' WHERE key = 'schema'"))
        migrate(connection)
    with of_version_4.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM answer")).scalar_one() == 5


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ("CREATE TABLE participant (x INTEGER)", "tables of another program"),
        ("CREATE TABLE meta (x INTEGER)", "table 'meta'"),
        ("CREATE TABLE meta (key TEXT, value TEXT)", "table 'meta'"),
    ],
)
def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path, made, sentence):
    file = tmp_path / "other.sqlite"
    other = sqlite3.connect(file)
    other.execute(made)
    other.close()
    with pytest.raises(StateError, match=sentence):
        Store(f"sqlite:///{file}")
    tables_there = sqlite3.connect(file).execute("SELECT count(*) FROM sqlite_master").fetchone()
    assert tables_there[0] <= 2, "no table was added"
