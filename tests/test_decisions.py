"""Signals, decisions, settings and plans."""

from __future__ import annotations

import copy
import json
import math
import pickle
import zlib

import pytest

from accelerando._decisions import (
    ALWAYS,
    NOTHING,
    Decision,
    Memories,
    Plan,
    Policy,
    Settings,
    Signals,
    cap,
    ceil,
    fingerprint,
)
from accelerando.exceptions import UnknownSignalError

# -- signals --------------------------------------------------------------------------------------


def test_signals_are_a_mapping_with_attributes():
    signals = Signals({"update": 3, "loss": 0.5})
    assert signals.loss == signals["loss"] == 0.5
    assert dict(signals) == {"update": 3, "loss": 0.5}
    assert "loss" in signals
    assert "lr" not in signals
    assert len(signals) == 2
    assert signals == {"update": 3, "loss": 0.5}


def test_the_known_signals_of_a_fit_are_nan_until_they_are_given():
    signals = Signals.known(update=3, noise=2.0)
    assert signals.update == 3
    assert signals.noise == 2.0
    others = [signals[name] for name in ALWAYS if name != "update"]
    assert len(others) == 18
    assert all(map(math.isnan, others))
    assert not signals.loss < 0.5
    assert not signals.loss >= 0.5


@pytest.mark.parametrize("read", [lambda s: s.losss, lambda s: s["losss"]])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(read):
    with pytest.raises(UnknownSignalError, match=r"no signal 'losss'\. Known signals: loss, upd"):
        read(Signals({"update": 3, "loss": 0.5}))


def test_an_unknown_name_is_an_attribute_error_and_a_key_error():
    signals = Signals({})
    assert not hasattr(signals, "loss")
    assert signals.get("loss") is None


def test_replacing_signals_leaves_the_old_ones():
    values = {"update": 3.0, "loss": 0.5}
    signals = Signals(values)
    assert signals.but(loss=0.25, lr=1.0) == {"update": 3.0, "loss": 0.25, "lr": 1.0}
    values["loss"] = 9.0
    assert signals.loss == 0.5


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_signals_can_be_copied_and_pickled(again):
    signals = Signals({"update": 3, "loss": 0.5})
    assert again(signals) == signals
    assert again(signals).loss == 0.5


# -- decisions ------------------------------------------------------------------------------------


def test_a_decision_shows_what_it_changes():
    assert repr(Decision(lr=0.5, workers=2)) == "Decision(lr=0.5, workers=2)"
    assert repr(NOTHING) == "Decision()"
    assert Decision(lr=0.5, betas=(0.9, 0.99)).items() == [("lr", 0.5), ("betas", (0.9, 0.99))]
    fields = "batch_size lr lr_scale momentum betas workers period precision"
    assert " ".join(Decision._fields) == fields


# -- policies --------------------------------------------------------------------------------------


class Halve(Policy):
    def decide(self, signals, state):
        return Decision(lr=signals.lr / 2), {"done": 1}


def test_a_policy_can_be_asked_without_a_memory():
    assert Halve()(Signals({"lr": 0.5})) == Decision(lr=0.25)
    assert Halve().start() == {}
    assert Halve().measures(0) is None
    assert Halve().monitors() == ()
    assert (Halve.needs, Halve.scheduled, Halve.occasional) == ((), False, False)


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [Settings(), Settings(8.0, 0.5, (1.0, 0.25), 0.9, (0.9, 0.99), 2, 3, "float32", 16.0)],
)
def test_settings_survive_json(settings):
    again = Settings.from_json(json.loads(json.dumps(settings.to_json())))
    assert again == settings
    assert [type(value) for value in again] == [type(value) for value in settings]


def test_memories_survive_json_and_are_copied():
    memories = Memories([{"size": 8}, {"inside": {"a": 1}}], [{}], {"noise": math.nan}, {"p": 2})
    content = memories.to_json()
    again = Memories.from_json(json.loads(json.dumps(content)))
    assert repr(again) == repr(memories)
    content["policies"][1]["inside"]["a"] = 5
    assert memories.policies[1] == {"inside": {"a": 1}}
    assert Memories() == Memories([], [], {}, {})


# -- carrying out ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "scale", "most", "rows", "expected"),
    [
        (64, 1.0, None, None, (64, 1.0)),
        (0.0, 1.0, None, None, (1, 1.0)),
        (64.2, 1.0, None, None, (65, 1.0)),
        (3 + 1e-12, 1.0, None, None, (3, 1.0)),
        (3000.0, 0.5, 1000, None, (1000, 0.5 * (1000 / 3000))),
        (2999.2, 1.0, 1000, None, (1000, 1000 / 3000)),  # by the rounded size
        (1000.0, 1.0, 1000, None, (1000, 1.0)),
        (3000.0, 1.0, None, 500, (500, 1.0)),  # the data set does not lower the rate
        (3000.0, 1.0, 1000, 500, (500, 1 / 3)),
        (64.0, 1.0, None, 0, (1, 1.0)),
    ],
)
def test_the_batch_is_an_integer_within_its_bounds(wanted, scale, most, rows, expected):
    assert cap(wanted, scale, max_batch_size=most, n_examples=rows) == expected


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (math.inf, 1.0), (8.0, math.nan), (8.0, -1.0)])
def test_a_batch_that_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="must return finite numbers"):
        cap(*bad, max_batch_size=None, n_examples=10)


def test_rounding_forgives_the_last_digits():
    assert ceil(0.1 * 30) == 3
    assert ceil(1e9 + 0.4) == 1_000_000_000  # nine digits are all that counts
    assert ceil(3.001) == 4


def test_the_fingerprint_depends_on_everything_that_is_carried_out():
    plan = Plan(64, 32, 0.5, Settings(momentum=0.9), [{}])
    others = [
        plan._replace(rows=65),
        plan._replace(lr_scale=0.50001),
        *(
            plan._replace(settings=plan.settings._replace(**{name: value}))
            for name, value in [
                ("momentum", 0.8),
                ("betas", (0.9, 0.99)),
                ("workers", 2),
                ("period", 3),
                ("precision", "float16"),
            ]
        ),
    ]
    marks = [fingerprint(one) for one in (plan, *others)]
    assert len(set(marks)) == len(marks)
    assert all(mark == int(mark) and 0 <= mark < 4096 for mark in marks)
    # Neither the last digits of the rate nor memories count.
    same = plan._replace(lr_scale=0.5 * (1 + 1e-9), policy_memories=[{"a": 1}])
    assert fingerprint(same) == fingerprint(plan)
    assert fingerprint(plan) == zlib.crc32(b"64 0.5 0.9 None None None None") % 4096
