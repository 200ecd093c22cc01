"""What a strategy is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from accelerando import sync
from accelerando._decisions import Signals
from accelerando.policies import replay
from accelerando.sync import Average, Averaging, PeriodicAveraging, ring_bytes
from accelerando.sync._make import as_strategy


@dataclass(frozen=True)
class Doubling(Averaging):
    epochs: int = 1

    def next_period(self, signals, state):
        return 2 ** (signals.epoch // self.epochs)


def test_a_strategy_of_ones_own_needs_one_method():
    frame = replay(Doubling(), {"spread": [0.1] * 5}, updates_per_epoch=2)
    assert frame["period"].tolist() == [1, 1, 2, 2, 4, 4]
    strategy = Doubling()
    assert strategy.rule(3) == Average("keep")
    assert strategy.ranks_wanted() is None
    assert strategy.needs == ()
    assert strategy.observe(Signals.known(), {"a": 1}) == {"a": 1}
    assert not strategy.begins_anew(Signals.known(), {})


def test_the_old_needs_loss_works_for_one_version():
    with pytest.warns(FutureWarning, match=r"Old.needs_loss is deprecated.*needs = \(\"loss\",\)"):

        class Old(Doubling):
            needs_loss = True

    assert Old().needs == ("loss",)
    with pytest.warns(FutureWarning, match="needs_loss is deprecated"):

        class Without(Old):
            needs_loss = False

    assert Without().needs == ()


def test_other_settings():
    assert PeriodicAveraging(4).with_settings(period=8) == PeriodicAveraging(8)
    with pytest.raises(ValueError, match=r"has no parameter 'perid'. Did you mean"):
        PeriodicAveraging(4).with_settings(perid=8)


@pytest.mark.parametrize(("ranks", "sent"), [(1, 0), (2, 8000), (16, 120_000)])
def test_bytes_of_a_ring(ranks, sent):
    assert ring_bytes(4000, ranks) == sent


# -- old names ------------------------------------------------------------------------------------


def test_old_names_warn():
    with pytest.warns(FutureWarning, match="Use accelerando.policies.Signals"):
        assert sync.Signals is Signals
    with pytest.warns(FutureWarning, match="sync.as_strategy is deprecated"):
        assert sync.as_strategy is as_strategy
    with pytest.warns(FutureWarning, match="Use accelerando.policies.replay"):
        old = sync.replay
    assert old(PeriodicAveraging(2), spreads=[0.1] * 4)["averaged"].tolist() == [False, True] * 2
    with pytest.raises(AttributeError, match="no attribute 'Centre'"):
        sync.Centre  # noqa: B018
