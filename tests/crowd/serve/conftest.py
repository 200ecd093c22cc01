"""People in this process whose random queries are the same in every run."""

import itertools

import pytest

from accelerando.crowd.store import participants


@pytest.fixture(autouse=True)
def _same_people(monkeypatch):
    """What a worker decides by statistics depends on the queries, and they on random secrets."""
    numbers = itertools.count(1)
    monkeypatch.setattr(participants, "new_secret", lambda: f"{next(numbers):032x}")
