"""The store itself: schema, migrations, archives, exports, numbers for the dashboard."""

import csv
import io
import json
import threading
import time
import zipfile

import pyarrow.parquet
import pytest
from sqlalchemy import text

from accelerando.crowd._read import read_answers
from accelerando.crowd.serve.backup import backup, restore
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, archive, experiments, export, people, statistics
from accelerando.crowd.store.errors import Refused
from accelerando.crowd.store.migrate import migrate
from accelerando.exceptions import StateError
from tests.crowd.store.conftest import Lab

EGGS = "name: eggs\nitems: 9\nskip: true\nparticipants: {answers: 15}\nchecks: {repeat_every: 7}\n"


@pytest.fixture
def answered(lab):
    """Thirty answers of two people, a skip, and an embedding."""
    lab = lab(EGGS)
    for name in ("anna", "=cmd()"):
        token = lab.token(lab.come(participant=name, STUDY_ID="s"))
        lab.answer(token, lab.look(token).queries[0], None)
        lab.answer_all(token)
    Worker(lab.store).turn()
    return lab


def test_opening_twice_changes_nothing(store):
    Store(store.url).close()
    with store.read() as connection:
        assert experiments.names(connection) == []


def test_processes_that_start_at_once_agree_on_the_secret(store):
    found = []

    def another():
        other = Store(store.url)
        with other.write() as connection:
            found.append(other.secret(connection))
        other.close()

    thread = threading.Thread(target=another)
    with store.write() as connection:
        found.append(store.secret(connection))  # not committed yet: the other cannot see it
        thread.start()
        thread.join(0.2)
    thread.join()
    assert found == 2 * found[:1]


def test_migrations_run_in_order_and_once(store):
    ran = []
    steps = {v: lambda connection, v=v: ran.append(v) for v in (2, 3)}
    with store.write() as connection:
        migrate(connection, steps, to=3)
        migrate(connection, steps, to=3)
    assert ran == [2, 3]


def test_a_step_that_fails_leaves_the_database_as_it_was(store):
    def fail(connection):
        connection.execute(text("CREATE TABLE half (x INTEGER)"))
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError), store.write() as connection:
        migrate(connection, {2: fail}, to=2)
    with store.write() as connection:
        ran = []
        migrate(connection, {2: lambda c: ran.append(2)}, to=2)
    assert ran == [2]


def test_a_database_of_the_future_is_refused(store):
    with store.write() as connection:
        connection.execute(text("UPDATE meta SET value = '99' WHERE key = 'schema'"))
    with pytest.raises(StateError, match="version 99"):
        Store(store.url)


@pytest.mark.parametrize("url", ["mysql://x/y", "crowd.sqlite", "sqlite:memory"])
def test_other_databases_are_refused_without_showing_passwords(url):
    with pytest.raises(ValueError, match="sqlite:///FILE or postgresql"):
        Store(url)


def test_an_archive_brings_everything_back(answered):
    now = answered.find()
    stream = io.BytesIO()
    with answered.store.read() as connection:
        archive.write_archive(connection, now, stream)
        before = list(export.rows(connection, now))
    checked = archive.read_archive(stream.getvalue())
    with answered.store.write() as connection:
        archive.restore(connection, checked, "again", time.time())
    with answered.store.read() as connection:
        copy = experiments.find(connection, "again")
        assert copy.paused
        assert list(export.rows(connection, copy)) == before
        assert statistics.embedding(connection, "again")[1].n_answers > 0
        assert people.qualities(connection, copy)[0]["answered"] == 15
    with answered.store.write() as connection, pytest.raises(Refused, match="already"):
        archive.restore(connection, archive.read_archive(stream.getvalue()), "again", 1.0)


def test_a_backup_of_the_server_can_be_restored_elsewhere(answered, tmp_path):
    file = tmp_path / "backup.zip"
    assert backup(answered.store, file) == ["eggs"]
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    assert restore(other, file) == ["eggs"]
    with other.read() as there, answered.store.read() as here:
        assert list(export.rows(there, experiments.find(there, "eggs"))) == list(
            export.rows(here, answered.find())
        )
    other.close()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The bytes of an archive."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('good')}/crowd.sqlite")
    lab = Lab(store, EGGS)
    lab.answer_all(lab.token(lab.come()))
    Worker(store).turn()
    stream = io.BytesIO()
    with store.read() as connection:
        archive.write_archive(connection, lab.find(), stream)
    store.close()
    return stream.getvalue()


def tampered(good, name, change):
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(good)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.namelist():
            content = old.read(entry)
            new.writestr(entry, change(content) if entry == name else content)
    return out.getvalue()


def first_line(**values):
    def change(content):
        lines = content.splitlines()
        lines[0] = json.dumps({**json.loads(lines[0]), **values}).encode()
        return b"\n".join(lines)

    return change


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("manifest.json", lambda _: b"[]", "format"),
        ("manifest.json", lambda _: b"{", "cannot be restored"),
        ("settings.json", lambda _: b'{"name": "../x"}', "name"),
        ("items.json", lambda _: b"[]", "fewer than 3"),
        ("items.json", lambda _: b"[1, 2, 3]", "cannot be restored"),
        ("queries.jsonl", first_line(head=999), "do not exist"),
        ("queries.jsonl", first_line(participant_id=999_999), "do not exist"),
        ("queries.jsonl", first_line(extra="x"), "extra"),
        ("answers.jsonl", first_line(winner=8_000), "not one of its items"),
        ("answers.jsonl", first_line(query_id=1), "without its query"),
        ("answers.jsonl", lambda content: content + content, "twice"),
        ("answers.jsonl", lambda _: b"0" * 50_000_000, "unpacks"),
        ("models.jsonl", first_line(positions=[[1.0]]), "shape"),
        ("media.json", lambda _: b'{"../../etc/passwd": "x"}', "cannot be restored"),
    ],
)
def test_a_bad_archive_is_refused_with_its_reason(good, name, change, says):
    with pytest.raises(Refused, match=says):
        archive.read_archive(tampered(good, name, change))


@pytest.mark.parametrize("data", [b"", b"PK", b"hello" * 100])
def test_what_is_no_archive_is_refused(data):
    with pytest.raises(Refused):
        archive.read_archive(data)


def test_our_own_reader_understands_the_export(answered, tmp_path):
    with answered.store.read() as connection:
        now = answered.find()
        file = tmp_path / "answers.csv"
        file.write_text("".join(export.answers_csv(connection, now)))
        table = pyarrow.parquet.read_table(io.BytesIO(export.answers_parquet(connection, now)))
        skips = "".join(export.answers_csv(connection, now, skips=True))
    answers = read_answers(file)
    assert len(answers.triplets) == 30
    assert answers.participants == 2
    assert answers.problems == []
    assert table.num_rows == 30
    assert set(table.column_names) == set(export.COLUMNS)
    assert skips.count("\n") == 3
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["participant"] for row in rows} == {"anna", "'=cmd()"}, "not a formula"
    assert {row["kind"] for row in rows} == {"query", "repeat"}
    assert all(row["at_random"] == "false" for row in rows if row["kind"] == "repeat")


def test_salmons_columns(answered, tmp_path):
    with answered.store.read() as connection:
        text = "".join(export.salmon_csv(connection, answered.find()))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == export.SALMON_COLUMNS
    assert len(rows) == 30
    assert rows[0]["winner"] == rows[0]["left"]
    assert float(rows[0]["score"]) == -9999
    assert int(rows[0]["num_responses"]) == 30
    file = tmp_path / "responses.csv"
    file.write_text(text)
    assert len(read_answers(file).triplets) == 30


def test_the_dashboard_counts_what_is_there(answered):
    with answered.store.read() as connection:
        found = statistics.dashboard(connection, "eggs", "", time.time())
    assert found["summary"]["answers"] == 30
    assert found["summary"]["skips"] == 2
    assert sum(found["activity"]["counts"]) == 32
    assert sum(found["arrivals"]["counts"]) == 2
    assert sum(found["response_time"]["counts"]) == 32
    assert found["samplers"][0]["queued"] > 0
    assert sum(found["items"]["queries"]) == 3 * 30
    assert sum(found["active_share"].values()) == 30
    assert found["active_share"]["check"] == 4
    assert found["worker"]["model_version"] == found["embedding_version"]
    assert found["worker"]["behind"] == 0
    json.dumps(found)


def test_an_empty_experiment_has_a_dashboard_too(lab):
    lab(EGGS)
    with lab("name: other\nitems: 3\n").store.read() as connection:
        found = statistics.dashboard(connection, "eggs", "", time.time())
    assert found["coverage"]["never"] == 9
    assert found["accuracy"]["answers_to_go"] is None


def test_quality_shows_who_does_not_read(lab):
    checks = "checks: {every: 3, queries: [{head: 0, left: 1, right: 7, winner: 1}]}"
    lab = lab(f"name: eggs\nitems: 8\nparticipants: {{answers: 30}}\n{checks}\n")
    careful = lab.token(lab.come(participant="careful"))
    standing = lab.look(careful)
    while standing.queries:
        query = standing.queries[0]
        side = "left" if int(query.id) % 2 else "right"
        standing = lab.answer(careful, query, 1 if query.kind == "check" else side)
    lab.answer_all(lab.token(lab.come(participant="lefty")))
    with lab.store.read() as connection:
        lefty, careful = people.qualities(connection, lab.find())
    assert careful["checks"] == {"passed": 10, "asked": 10}
    assert careful["flags"] == []
    assert lefty["left_share"] == 1.0
    assert set(lefty["flags"]) >= {"one_sided"}
    assert lefty["checks"]["passed"] == 5
