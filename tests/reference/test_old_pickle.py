"""An estimator that an earlier version pickled is refused with the way out."""

from __future__ import annotations

import pickle

import pytest

from accelerando.exceptions import StateError
from tests.reference.saved_states import PICKLE


def test_an_estimator_pickled_by_the_old_engine_is_refused():
    with pytest.raises(StateError, match="load_state"):
        pickle.loads(PICKLE.read_bytes())
