"""Numbers and ranks of the models of a bracket in progress."""

import math

from accelerando.search._bracket_run import BracketRun, Model
from accelerando.search._halving import train_all
from accelerando.search._plan import Bracket, Rung


def bracket(first=0):
    return BracketRun(Bracket(2, (Rung(3, 9),)), train_all(3, 9), first)


def test_models_are_numbered_from_the_first():
    assert list(bracket(first=5).models) == [5, 6, 7]
    assert bracket().index == 2


def test_models_rank_by_score_then_by_number_and_nan_is_last():
    scores = [0.5, None, 0.9, math.nan, 0.9, -math.inf]
    models = [Model(i, bracket(), {}, score=score) for i, score in enumerate(scores)]
    assert [model.number for model in sorted(models, key=lambda m: m.rank)] == [2, 4, 0, 5, 1, 3]
