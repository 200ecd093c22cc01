"""The plain values of a state."""

from __future__ import annotations

import dataclasses
import math

from accelerando._engine.position import (
    AVERAGING_COLUMNS,
    EPOCH_COLUMNS,
    UPDATE_COLUMNS,
    AveragingState,
    HostState,
    LastUpdate,
    Part,
    Position,
)


def test_a_run_begins_before_its_first_update():
    position = Position()
    assert (position.epoch, position.cursor, position.update, position.examples) == (0, 0, 0, 0)
    assert position.n_examples is None, "the length of a stream is unknown"
    assert not position.epoch_open
    assert dataclasses.asdict(AveragingState()) == {"since": 0, "count": 0}


def test_nothing_is_known_of_an_update_before_the_first():
    last = LastUpdate()
    assert last.rows == 0
    assert math.isnan(last.loss)
    assert math.isnan(last.grad_norm)


def test_all_parts_are_all_parts_and_none_overlap():
    parts = [part for part in Part if part is not Part.ALL]
    assert sum(part.value for part in parts) == Part.ALL.value
    assert all(not one & other for one in parts for other in parts if one is not other)


def test_the_numbers_of_parts_stay_because_files_hold_them():
    names = ("MODEL", "POSITION", "REPLICAS", "RECORDS", "RNG", "HOST")
    assert [Part[name].value for name in names] == [1, 2, 4, 8, 16, 32]


def test_hosts_do_not_share_what_they_keep():
    first, second = HostState(), HostState()
    first.plain["history"] = []
    assert second.plain == {}


def test_no_two_columns_have_one_name():
    columns = (*UPDATE_COLUMNS, *AVERAGING_COLUMNS)
    assert len(set(columns)) == len(columns)
    assert len(set(EPOCH_COLUMNS)) == len(EPOCH_COLUMNS)
