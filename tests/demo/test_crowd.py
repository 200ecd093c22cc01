"""The crowd in the demo: chosen questions need fewer answers, and a missed goal is no number."""

import math

from accelerando.demo import _crowd


def test_chosen_questions_need_clearly_fewer_answers(results):
    (at_random,), (chosen,) = results.crowds["random"], results.crowds["chosen"]
    assert _crowd.ITEMS < chosen.answers < 0.7 * at_random.answers < _crowd.MOST


def test_the_map_has_every_item_and_their_order(results):
    positions = results.crowds["chosen"][0].positions
    assert positions.shape == (_crowd.ITEMS, 2)
    ends = abs(positions[0] - positions[-1]).max()
    assert abs(positions[0] - positions[1]).max() < ends / 2


def test_a_goal_that_is_not_reached_is_not_a_number(monkeypatch):
    monkeypatch.setattr(_crowd, "MOST", 60)
    monkeypatch.setattr(_crowd, "HELD_OUT", 500)
    found = _crowd.ask(range(1))
    assert all(math.isnan(one.answers) for (one,) in found.values())
