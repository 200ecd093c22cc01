"""YAML with line numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd.experiment import (
    Files,
    SettingsError,
    make_experiment,
    read_yaml,
)


def problems(text, files=None):
    with pytest.raises(SettingsError) as refused:
        make_experiment(read_yaml(text), files or Files())
    return refused.value.problems


def outcome(document):
    """The experiment, or the problems with it."""
    try:
        return make_experiment(document, Files())
    except SettingsError as error:
        return error.problems


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    assert outcome(read_yaml(text))
