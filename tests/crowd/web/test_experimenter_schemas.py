"""What experimenters may send has limits, and what they get is complete."""

import pytest
from pydantic import ValidationError

from accelerando.crowd.web.experimenter_schemas import Confirm, Created, SessionInfo, SignIn


@pytest.mark.parametrize(
    ("schema", "field", "most"),
    [
        (SignIn, "name", 100),
        (SignIn, "password", 1000),
        (SignIn, "code", 20),
        (Confirm, "confirm", 200),
    ],
)
def test_no_field_is_longer_than_its_limit(schema, field, most):
    values = dict.fromkeys(schema.model_fields, "a")
    schema(**{**values, field: "a" * most})
    with pytest.raises(ValidationError, match="string_too_long"):
        schema(**{**values, field: "a" * (most + 1)})


@pytest.mark.parametrize("missing", ["name", "password"])
def test_a_sign_in_needs_name_and_password(missing):
    values = {"name": "lab", "password": "four words of mine"}
    assert SignIn(**values).code == "", "most accounts have no app"
    with pytest.raises(ValidationError, match=missing):
        SignIn(**{name: value for name, value in values.items() if name != missing})


@pytest.mark.parametrize("value", [None, 3, ["a"], {"a": "b"}])
def test_a_password_is_text_and_nothing_is_converted(value):
    with pytest.raises(ValidationError, match="password"):
        SignIn(name="lab", password=value)


def test_what_differs_from_the_files_is_part_of_the_answer_to_an_upload():
    fields = Created.model_fields
    assert fields["notices"].is_required()
    assert {"participant_url", "dashboard_url", "state", "answers"} <= set(fields)
    with pytest.raises(ValidationError, match="state"):
        Created.model_validate({**dict.fromkeys(fields, 0), "state": "broken"})


def test_a_session_says_whether_its_password_must_be_changed():
    assert SessionInfo(experimenter="lab", csrf="x").must_change_password is False
