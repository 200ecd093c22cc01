"""The types between the driver's decisions and what carries them out."""

import dataclasses
import typing

import pytest

from accelerando._cluster.driver import state
from accelerando._cluster.driver.state import NO_STATE, NO_UPDATE, Action, Key, Phase, Send
from accelerando._cluster.messages import Stop


def test_more_averagings_are_further_ahead_and_updates_break_ties():
    assert max(Key(3, 40), Key(4, 38), Key(4, 39)) == Key(4, 39)
    assert NO_STATE < NO_UPDATE, "a rank without a state is behind a driver that has not begun"


def test_actions_are_values_and_all_of_them_are_in_the_union():
    assert Send("rank-0", Stop()) == Send("rank-0", Stop())
    assert len(set(typing.get_args(Action))) == 19
    for action in typing.get_args(Action):
        assert action.__module__ == state.__name__
        assert action.__dataclass_params__.frozen
        assert action.__doc__
    with pytest.raises(dataclasses.FrozenInstanceError):
        Send("rank-0", Stop()).rank = "rank-1"


def test_every_phase_says_what_the_driver_waits_for():
    assert [phase.name for phase in Phase] == [
        "IDLE", "GATHERING", "TRAINING", "DRAINING", "AVERAGING", "COLLECTING", "EVALUATING",
        "CLOSED",
    ]  # fmt: skip
    assert all(phase.value for phase in Phase)
