"""The rows of an archive that somebody has edited."""

import copy

import pytest
from pydantic import ValidationError

from accelerando.crowd.experiment import Settings
from accelerando.crowd.store import archive_rows
from accelerando.crowd.store.errors import ApiError

CHECKS = {"queries": [{"head": 0, "left": 1, "right": 2, "winner": 1}]}
SETTINGS = Settings.model_validate(
    {
        "checks": CHECKS,
        "samplers": {
            "rounds": {"class": "RoundRobin", "items": [0, 1, 2, 3]},
            "known": {"class": "Validation", "queries": [[0, 1, 2], [3, 4, 5]]},
        },
    }
)
STATE = {"n_items": 8, "seed": 7, "turn": 1, "deck": [0, 1], "cover": []}
PERSON = {"id": 1, "external": "anna", "personal": {}}
ROWS = {"participants": [PERSON], "queries": [], "answers": [], "models": []}


def check(personal, **more):
    rows = {**copy.deepcopy(ROWS), **more}
    rows["participants"][0]["personal"] = personal
    archive_rows.check_rows(rows, 8, SETTINGS)


@pytest.mark.parametrize(
    "personal",
    [
        {},
        {"rounds": STATE},
        {"rounds": {"n_items": 8, "seed": 7, "turn": 1, "deck": [3]}},  # of an earlier version
        {"known": {**STATE, "deck": [3, 2]}},  # two queries, on either side
        {" check": {**STATE, "deck": [1]}},
        {" unshown": {"0": 3, "7": 1}},
        {"a former name": STATE},
    ],
)
def test_what_the_service_writes_is_accepted(personal):
    check(personal)


@pytest.mark.parametrize(
    "personal",
    [
        {" unshown": {"abc": 1}},
        {" unshown": {"1": "x"}},
        {" unshown": {"1": True}},
        {" unshown": {"1": -1}},
        {" unshown": {"8": 1}},
        {" unshown": {"9" * 5000: 1}},
        {" unshown": [1]},
        {"rounds": 7},
        {"rounds": []},
        {"rounds": {"x": 1}},
        {"rounds": {**STATE, "n_items": 10**9}},  # would be an array of this length
        {"rounds": {**STATE, "seed": -1}},
        {"rounds": {**STATE, "turn": 1.5}},
        {"rounds": {**STATE, "deck": [4]}},  # not one of its items
        {"rounds": {**STATE, "deck": "0"}},
        {"known": {**STATE, "deck": [4]}},
        {" check": {**STATE, "deck": [2]}},
        {" check": None},
    ],
)
def test_states_that_fail_when_their_participant_comes_back_are_refused(personal):
    """The dashboard of such an experiment was a 500, and so were the participant's requests."""
    with pytest.raises((ApiError, ValidationError)):  # read_archive makes a sentence of both
        check(personal)


def test_one_id_is_one_participant_and_one_version_one_embedding():
    with pytest.raises(ApiError, match="occurs twice"):
        check({}, participants=[dict(PERSON), {**PERSON, "id": 2}])
    check({}, participants=[{**PERSON, "external": None}, {**PERSON, "id": 2, "external": None}])
    model = {"version": 1, "positions": None}
    check({}, models=[model, {**model, "version": 2}])
    with pytest.raises(ApiError, match="occurs twice"):
        check({}, models=[model, model])
