"""Both kinds of workers have the interface that the driver uses."""

import inspect

import pytest

from accelerando.search._cluster import DaskWorkers
from accelerando.search._local import LocalWorkers
from accelerando.search._workers import Workers

MEMBERS = sorted(
    {name for name in vars(Workers) if not name.startswith("_")} | set(Workers.__annotations__)
)


@pytest.mark.parametrize("cls", [LocalWorkers, DaskWorkers])
@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_is_there_with_the_same_parameters(cls, name):
    there = inspect.getattr_static(cls, name)
    expected = vars(Workers).get(name)
    assert inspect.isfunction(there) == inspect.isfunction(expected)
    if inspect.isfunction(there):
        assert list(inspect.signature(there).parameters) == list(
            inspect.signature(expected).parameters
        )


def test_the_interface_is_complete():
    assert MEMBERS == [
        "busy", "close", "drop", "free_slots", "get", "location", "min_task_seconds", "most_calls",
        "n_slots", "pickled", "present", "put", "submit", "wait", "want",
    ]  # fmt: skip
