"""States that the version before the redesign saved are read, and the runs end as they would have.

See ``saved_states.py`` for how they were made. Noise scales, and the runs of NoiseScale
and NormTest, were recorded again when rows began to be compared. Those with dropout go on with
other masks, since every update seeds its own random numbers.
"""

from __future__ import annotations

import json

import pytest

from tests.reference import saved_states
from tests.reference.saved_states import DATA, FOLDER, STATES, finish, path_of
from tests.reference.summary import differences, summarize

EXPECTED = json.loads((FOLDER / "expected.json").read_text())
TOLERANCE = 1e-12
SINGLE = 1e-5  # one of them was trained in float32

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_every_file_is_known():
    assert sorted(FOLDER.glob("*.pt")) == sorted(map(path_of, STATES))
    assert EXPECTED.keys() == STATES.keys()


@pytest.mark.parametrize("path", sorted((DATA / "states_v5").glob("*.pt")), ids=lambda p: p.stem)
def test_a_run_that_version_5_saved_continues(path, monkeypatch):
    """These runs are some of those of version 4, saved by the version that wrote version 5."""
    name = next(name for name in STATES if path_of(name).name == path.name)
    monkeypatch.setattr(saved_states, "FOLDER", path.parent)
    assert not differences(EXPECTED[name], summarize(finish(name)), tolerance=TOLERANCE)


@pytest.mark.parametrize("name", STATES)
def test_a_saved_run_continues(name):
    tolerance = SINGLE if "float32" in name else TOLERANCE
    assert not differences(EXPECTED[name], summarize(finish(name)), tolerance=tolerance)
