"""Exports of answers."""

import csv
import io

import pyarrow.parquet

from accelerando.crowd._read import read_answers
from accelerando.crowd.store import export


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
