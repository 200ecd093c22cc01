"""States that the version before the redesign saved are read, and the runs end as they would have.

See ``saved_states.py`` for how they were made.
"""

from __future__ import annotations

import json

import pytest

from tests.reference.saved_states import FOLDER, STATES, finish, path_of
from tests.reference.summary import differences, summarize

EXPECTED = json.loads((FOLDER / "expected.json").read_text())
TOLERANCE = 1e-12
SINGLE = 1e-5  # one of them was trained in float32

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_every_file_is_known():
    assert sorted(FOLDER.glob("*.pt")) == sorted(map(path_of, STATES))
    assert EXPECTED.keys() == STATES.keys()


@pytest.mark.parametrize("name", STATES)
def test_a_saved_run_continues(name):
    tolerance = SINGLE if "float32" in name else TOLERANCE
    assert not differences(EXPECTED[name], summarize(finish(name)), tolerance=tolerance)
