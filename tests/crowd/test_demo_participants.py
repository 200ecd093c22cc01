"""Simulated participants of the demo."""

import numpy as np

from accelerando.crowd._demo_participants import habit, participate
from accelerando.crowd.client import Asked


def test_one_in_ten_does_not_look():
    rng = np.random.default_rng(0)
    careless = [habit(rng).careless for _ in range(2000)]
    assert 150 < sum(careless) < 250


class Session:
    """A participant's session with five queries, one of them practice."""

    def __init__(self):
        kinds = ["practice", "query", "query", "query", "query"]
        self.waiting = [Asked(str(k), 0, 1, 2, {"kind": kind}) for k, kind in enumerate(kinds)]
        self.session = {"consent_required": True, "finished": False}
        self.winners, self.times, self.consented = [], [], False

    def consent(self):
        self.consented = True

    def next(self):
        return self.waiting[0]

    def answer(self, query, winner, *, response_time, network_latency):
        self.winners.append(winner)
        self.times.append(response_time)
        self.waiting.pop(0)
        self.session["finished"] = not self.waiting


def run(seed, answers_left, pause=lambda seconds: True):
    session, counted = Session(), []
    participate(
        session,
        lambda rows, rng: np.array([int(answers_left)]),
        np.random.default_rng(seed),
        think=0.1,
        pause=pause,
        answered=lambda: counted.append(1),
    )
    return session, len(counted)


def test_a_participant_consents_and_answers_as_the_response_model_says():
    attentive = next(seed for seed in range(50) if not habit(np.random.default_rng(seed)).careless)
    session, counted = run(attentive, answers_left=False)
    assert session.consented
    assert session.winners == [2] * 5
    assert counted == 4  # practice does not count
    assert min(session.times) > 0


def test_a_careless_participant_always_chooses_left():
    careless = next(seed for seed in range(50) if habit(np.random.default_rng(seed)).careless)
    session, _ = run(careless, answers_left=False)
    assert session.winners == [1] * 5


def test_a_participant_stops_when_the_pause_says_so():
    allowed = iter([True, True, False])
    session, _ = run(0, answers_left=True, pause=lambda seconds: next(allowed))
    assert len(session.winners) == 2
