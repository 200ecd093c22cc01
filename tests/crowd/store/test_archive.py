"""Archives of experiments: complete, and checked before they are restored."""

import io
import json
import time
import zipfile

import pytest

from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, archive, experiments, export, people, statistics
from accelerando.crowd.store.errors import ApiError
from tests.crowd.conftest import EGGS, Lab


def test_an_archive_brings_everything_back(answered):
    now = answered.find()
    stream = io.BytesIO()
    with answered.store.read() as connection:
        archive.write_archive(connection, now, stream)
        before = list(export.rows(answered.store.read, now))
    checked = archive.read_archive(stream.getvalue())
    with answered.store.write() as connection:
        archive.restore(connection, checked, "again", time.time())
    with answered.store.read() as connection:
        copy = experiments.find(connection, "again")
        assert copy.paused
        assert list(export.rows(answered.store.read, copy)) == before
        assert statistics.embedding(connection, "again")[1].n_answers > 0
        assert next(people.qualities(connection, copy))["answered"] == 15
    with answered.store.write() as connection, pytest.raises(ApiError, match="already"):
        archive.restore(connection, archive.read_archive(stream.getvalue()), "again", 1.0)


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


def change_of(**values):
    return lambda content: json.dumps({**json.loads(content), **values}).encode()


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
        ("answers.jsonl", first_line(response_time=float("nan")), "finite"),
        ("answers.jsonl", first_line(winner=True), "valid integer"),
        ("answers.jsonl", first_line(received=1e300), "less than"),
        ("participants.jsonl", first_line(created=float("inf")), "finite"),
        ("participants.jsonl", first_line(last=-1e12), "greater than"),
        ("participants.jsonl", first_line(id=2**70), "less than"),
        ("manifest.json", change_of(created=float("nan")), "finite"),
        ("manifest.json", change_of(created="nan"), "valid number"),
        ("settings.json", change_of(fixed={"1": {"query": [0, 1, 99]}}), "there is no item 99"),
        ("settings.json", change_of(seed=True), "must be a number"),
        ("models.jsonl", first_line(positions=[[1.0]]), "shape"),
        ("media.json", lambda _: b'{"../../etc/passwd": "x"}', "cannot be restored"),
        ("media.json", lambda _: b"7", "another form"),
        ("items.json", lambda _: b'{"a": 1, "b": 2, "c": 3}', "another form"),
        ("items.json", lambda content: content.replace(b'"1"', b'"\\ud800"'), "cannot be restored"),
        ("participants.jsonl", first_line(name="\ud800"), "cannot be restored"),
        ("queries.jsonl", first_line(winner=2**70), "not one of its items"),
        ("queries.jsonl", first_line(kind="check", winner=8_000), "not one of its items"),
        ("queries.jsonl", lambda _: b"[" * 100_000, "cannot be restored"),
    ],
)
def test_a_bad_archive_is_refused_with_its_reason(good, name, change, says):
    with pytest.raises(ApiError, match=says):
        archive.read_archive(tampered(good, name, change))


@pytest.mark.parametrize("data", [b"", b"PK", b"hello" * 100])
def test_what_is_no_archive_is_refused(data):
    with pytest.raises(ApiError):
        archive.read_archive(data)


def test_an_archive_is_not_unpacked_whole(good):
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            packing = zipfile.ZIP_BZIP2 if name == "answers.jsonl" else zipfile.ZIP_DEFLATED
            new.writestr(name, old.read(name), packing)
    with pytest.raises(ApiError, match=r"answers\.jsonl is packed unusually"):
        archive.read_archive(stream.getvalue())


def test_rows_that_the_database_refuses_are_a_sentence(store, good):
    """NUL in a text on PostgreSQL, and one id twice after the checks of the file."""
    bad = archive.read_archive(tampered(good, "participants.jsonl", first_line(name="a\x00b")))
    if store.is_sqlite:
        row = bad.rows["participants"][0]
        row["external"] = "anna"
        bad.rows["participants"].append({**row, "id": 7})
    with pytest.raises(ApiError, match="the database refuses its rows"), store.write() as rows:
        archive.restore(rows, bad, "again", 1.0)
    with store.read() as connection:
        assert experiments.names(connection) == []
