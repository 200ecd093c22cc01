"""Records in files: whatever is sealed when, all rows come back."""

from __future__ import annotations

import copy
import json
import math
import uuid

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando._engine import checkpoint, journal
from accelerando._engine.journal import Journal, Mark, join_records, records_between
from accelerando._engine.position import Part
from accelerando._engine.state import Records
from accelerando._folder import open_folder
from accelerando.exceptions import StateError


class Run:
    """A run that records updates and epochs, as the loop and skorch do."""

    def __init__(self):
        self.records, self.history, self.batches = Records(), [], 0
        self.n_updates = 0

    def begin_epoch(self):
        self.history.append({"epoch": len(self.history) + 1, "batches": []})

    def update(self):
        if not self.history or "valid_loss" in self.history[-1]:
            self.begin_epoch()
        self.n_updates += 1
        columns = len(self.records.updates.columns)
        self.records.updates.add(self.n_updates, *[self.n_updates / 7] * (columns - 1))
        self.history[-1]["batches"].append({"train_loss": self.n_updates / 3})

    def end_epoch(self):
        if not self.history or "valid_loss" in self.history[-1]:
            return
        self.history[-1]["valid_loss"] = self.n_updates / 5
        self.records.epochs.add(len(self.history), self.n_updates, 0, 0, 0, 0)


def joined(pieces, records):
    tables, history = join_records(pieces, records.updates.columns)
    return tables["updates"], tables["epochs"], history


def check_equal(found, run):
    updates, epochs, history = found
    assert torch.equal(updates, run.records.updates.tensor())
    assert torch.equal(epochs, run.records.epochs.tensor())
    assert history == run.history


STEPS = st.sampled_from(["update", "end", "save", "amend", "score"])


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=40), st.integers(1, 6))
def test_pieces_joined_are_the_records(steps, rows_per_file):
    run, log, sealed = Run(), Journal(), []
    for step in steps:
        if step == "update":
            run.update()
        elif step == "end":
            run.end_epoch()
        elif step == "score" and run.history:
            run.history[-1]["late"] = run.n_updates  # a callback adds to the last epoch and batch
            if run.history[-1]["batches"]:
                run.history[-1]["batches"][-1]["late"] = run.n_updates
        elif step == "amend" and run.n_updates:
            back = run.n_updates // 2
            run.records.updates.amend(back, loss=run.n_updates * 1000.0)
        elif step == "save":
            if log.follow(run.records, run.history, run.history):
                sealed.clear()
            mark = log.next_mark(run.records, run.history)
            if mark is not None and sum(mark) >= rows_per_file:
                sealed.append(records_between(run.records, run.history, log.sealed, mark))
                log.sealed, log.files = mark, ["file"]
            tail = records_between(run.records, run.history, log.sealed, None)
            check_equal(joined([*sealed, tail], run.records), run)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(journal, "ROWS_PER_FILE", 1)


def test_a_file_is_due_after_a_number_of_rows(monkeypatch):
    monkeypatch.setattr(journal, "ROWS_PER_FILE", 10)
    run, log = Run(), Journal()
    for _ in range(5):
        run.update()
    assert log.next_mark(run.records, run.history) is None
    for _ in range(3):
        run.update()
    assert log.next_mark(run.records, run.history) == Mark(8, 0, 0, 7)


def test_another_history_or_other_columns_begin_anew():
    run, log = Run(), Journal()
    for _ in range(4):
        run.update()
    log.follow(run.records, run.history, run.history)
    log.sealed, log.files = log.next_mark(run.records, run.history), ["file"]
    assert not log.follow(run.records, run.history, run.history)
    assert log.sealed == Mark(4, 0, 0, 3)
    other = copy.deepcopy(run.history)
    assert not log.follow(run.records, other, other), "the table is still as it was"
    assert log.sealed == Mark(4, 0, 0, 0)
    run.records.set_columns(["noise"])
    assert log.follow(run.records, other, other)
    assert (log.sealed, log.files) == (Mark(), [])


def test_columns_that_were_added_later_are_unknown_in_older_files():
    run = Run()
    run.update()
    first = records_between(run.records, run.history, Mark(), Mark(1, 0, 0, 1))
    run.records.set_columns(["noise"])
    run.update()
    tail = records_between(run.records, run.history, Mark(1, 0, 0, 1), None)
    updates, _, history = joined([first, tail], run.records)
    assert updates[:, 0].tolist() == [1.0, 2.0]
    assert math.isnan(updates[0, -1])
    assert history == run.history


# -- states that refer to files -------------------------------------------------------------------


@pytest.fixture
def stored():
    """Return a directory with two files of records, and a state that needs both."""
    folder, run, log, previous = open_folder(f"memory://{uuid.uuid4().hex}"), Run(), Journal(), None
    folder.create()
    for number in range(2):
        run.update()
        run.update()
        run.end_epoch()
        log.follow(run.records, run.history, run.history)
        mark = log.next_mark(run.records, run.history)
        piece = records_between(run.records, run.history, log.sealed, mark)
        content = {"json": "{}", "tensors": {}, "journal": {**piece, "previous": previous}}
        previous, log.sealed = f"records-{number}", mark
        folder.write(previous, lambda file, content=content: checkpoint.dump(content, file))
    run.update()
    tail = records_between(run.records, run.history, log.sealed, None)
    plain = {"parts": (Part.ALL & ~Part.RECORDS).value, "host": {"history": []}}
    content = {"json": json.dumps(plain), "tensors": {}, "journal": {**tail, "previous": previous}}
    return folder, run, content


def test_a_state_is_completed_from_the_files(stored):
    folder, run, content = stored
    whole = journal.with_records(content, folder)
    plain = json.loads(whole["json"])
    assert plain["host"]["history"] == run.history
    assert Part.RECORDS in Part(plain["parts"])
    assert torch.equal(whole["tensors"]["updates"], run.records.updates.tensor())
    assert torch.equal(whole["tensors"]["epochs"], run.records.epochs.tensor())


def test_a_missing_file_is_named(stored):
    folder, _, content = stored
    folder.remove("records-0")
    with pytest.raises(StateError, match="records-0 is missing"):
        journal.with_records(content, folder)


def test_without_the_files_the_newest_rows_are_left(stored):
    _, run, content = stored
    rest = journal.without_old_records(content)
    plain = json.loads(rest["json"])
    assert rest["tensors"]["updates"][:, 0].tolist() == [5.0]
    assert [row["epoch"] for row in plain["host"]["history"]] == [3]
    assert len(rest["tensors"]["epochs"]) == 0, "its rows are those of the history, from the first"
    assert run.history[2]["epoch"] == 3
