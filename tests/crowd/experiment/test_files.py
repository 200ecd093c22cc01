"""Files of an experiment, within limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd.experiment import (
    Files,
    SettingsError,
    make_experiment,
    read_upload,
    read_yaml,
)


def problems(text, files=None):
    with pytest.raises(SettingsError) as refused:
        make_experiment(read_yaml(text), files or Files())
    return refused.value.problems


@given(st.binary(max_size=300))
def test_any_upload_is_read_or_refused(data):
    files = read_upload("x.zip", data)
    assert files.problems or files.media or files.lists or files.settings
