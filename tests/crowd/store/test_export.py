"""Exports of answers."""

import csv
import io

import pyarrow.parquet
import pytest

from accelerando.crowd._read import read_answers
from accelerando.crowd.store import export, participants, published
from accelerando.crowd.store.errors import ApiError


def test_our_own_reader_understands_the_export(answered, tmp_path):
    with answered.store.read() as connection:
        now = answered.find()
        file = tmp_path / "answers.csv"
        file.write_text("".join(export.answers_csv(answered.store.read, now)))
        stream = io.BytesIO()
        export.answers_parquet(connection, now, stream)
        table = pyarrow.parquet.read_table(stream)
        skips = "".join(export.answers_csv(answered.store.read, now, skips=True))
    answers = read_answers(file)
    with answered.store.read() as connection:
        used = published.new_answers(connection, now.frame.id, 0)
    assert len(answers.triplets) == len(used) == 30, "a file is read as the service reads answers"
    assert answers.left_out == {"repeat": 4}
    assert answers.participants == 2
    assert answers.problems == []
    assert table.num_rows == 34
    assert set(table.column_names) == set(export.COLUMNS)
    assert skips.count("\n") == 3
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["participant"] for row in rows} == {"anna", "'=cmd()"}, "not a formula"
    assert {row["kind"] for row in rows} == {"query", "repeat"}
    assert all(row["at_random"] == "false" for row in rows if row["kind"] == "repeat")
    assert {(row["kind"], row["left_out"]) for row in rows} == {("query", ""), ("repeat", "repeat")}


def test_answers_are_read_in_short_transactions_that_belong_together(answered, monkeypatch):
    opened = []

    def open_():
        opened.append(1)
        return answered.store.read()

    whole = list(export.rows(open_, answered.find()))
    assert len(opened) == 2, "items, and one chunk"
    small = export.rows_query(7)
    monkeypatch.setattr(export, "_ROWS", small)
    monkeypatch.setattr(export, "_CHUNK", 7)
    opened.clear()
    parts = export.rows(open_, answered.find())
    assert [next(parts), *parts] == whole
    assert len(opened) == 1 + 36 // 7 + 1
    broken = export.rows(open_, answered.find())
    next(broken)
    person = answered.come(participant="third").person
    answered.do(participants.remove, answered.find(), person.id)
    with pytest.raises(ApiError, match="deleted meanwhile"):
        list(broken)


def test_salmons_columns(answered, tmp_path):
    with answered.store.read() as connection:
        text = "".join(export.salmon_csv(connection, answered.find()))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == export.SALMON_COLUMNS
    assert len(rows) == 30, "Salmon has no column that would leave the repeats out later"
    assert rows[0]["winner"] == rows[0]["left"]
    assert float(rows[0]["score"]) == -9999
    assert int(rows[0]["num_responses"]) == 30
    file = tmp_path / "responses.csv"
    file.write_text(text)
    assert len(read_answers(file).triplets) == 30


@pytest.mark.parametrize("blank", ["", " ", "\n", "\t", "\u3000", "\u00a0 "])
@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝", "＋", "－", "＠"])
def test_no_cell_is_a_formula(blank, sign):
    """Spreadsheets skip blanks, and some take full-width signs for the plain ones."""
    assert export.safe_cell(f"{blank}{sign}cmd()") == f"'{blank}{sign}cmd()"
    assert export.safe_cell("\nx").startswith("'")
    for harmless in ("a=b", "", " a", "é", 3, None):
        assert export.safe_cell(harmless) == harmless
