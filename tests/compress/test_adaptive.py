"""Adaptive: a rule chooses the settings of the next update."""

from types import SimpleNamespace

import pytest

from accelerando.compress import QSGD, Adaptive, Atomo, ErrorFeedback, PowerSGD, TernGrad, TopK

SIGNALS = SimpleNamespace(update=5, epoch=2, loss=0.5)


def test_a_rule_changes_settings_for_an_update():
    adaptive = Adaptive(Atomo(budget=1), lambda s: {"budget": 1 + s.epoch} if s.epoch else None)
    assert adaptive.at(SIGNALS) == Atomo(budget=3)
    assert adaptive.at(SimpleNamespace(epoch=0)) == Atomo(budget=1)
    assert Adaptive(QSGD(), lambda s: TernGrad()).at(SIGNALS) == TernGrad()
    feedback = Adaptive(ErrorFeedback(TopK(0.1)), lambda s: {"fraction": 0.5})
    assert feedback.at(SIGNALS) == ErrorFeedback(TopK(0.5))


def test_a_rule_that_returns_something_else_is_named():
    with pytest.raises(TypeError, match=r"dictionary of settings, a codec, or None. Got 4 instead"):
        Adaptive(QSGD(), lambda s: 4).at(SIGNALS)


@pytest.mark.parametrize(
    ("codec", "rule", "named"), [(PowerSGD(), dict, "'codec'"), (QSGD(), 4, "'rule'")]
)
def test_wrong_types_are_refused(codec, rule, named):
    with pytest.raises(TypeError, match=f"{named} parameter of Adaptive must be"):
        Adaptive(codec, rule)
