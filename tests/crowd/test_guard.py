"""The guard of active asking."""

import numpy as np
import pytest

from accelerando.crowd import ARR, FromEmbedding, Logistic, OrdinalEmbedding, simulate
from accelerando.crowd._choice import Candidate
from accelerando.crowd._guard import Guard, Trial, beats_chance, compare_shares, next_share

MODEL = Candidate(Logistic(), 0.05, 2, 0.2)


def random_answers(n_answers, n_items=20, d=2, seed=0):
    rng = np.random.default_rng(seed)
    truth = 3.0 * np.random.default_rng(7).normal(size=(n_items, d))
    rows = np.argsort(rng.random((n_answers, n_items)), axis=1)[:, :3]
    left = FromEmbedding(truth, "logistic")(rows, rng) == 1
    return truth, np.where(left[:, None], rows, rows[:, [0, 2, 1]])


def test_luck_does_not_beat_chance():
    rng = np.random.default_rng(0)
    begun = [beats_chance(int(rng.binomial(100, 0.5)), 100) for _ in range(2_000)]
    assert np.mean(begun) < 0.01


def test_skill_beats_chance_soon():
    assert not beats_chance(19, 19)
    assert beats_chance(80, 100)
    assert not beats_chance(5_150, 10_000), "surely above one half, but by too little to matter"


def test_no_query_is_chosen_while_the_fit_is_at_chance():
    _, rows = random_answers(400)
    blind = np.random.default_rng(1).normal(size=(20, 2))
    guard = Guard()
    guard.predict(rows, np.zeros(400, bool), 0, blind)
    assert guard.trust == 0.0
    assert "not surely more than by chance" in guard.reason


def test_queries_are_chosen_when_the_fit_predicts_random_answers():
    truth, rows = random_answers(400)
    guard = Guard()
    guard.predict(rows, np.zeros(400, bool), 0, truth)
    assert guard.trust == 1.0
    assert "Queries are chosen" in guard.reason


def test_only_random_answers_of_the_later_half_are_counted():
    truth, rows = random_answers(400)
    guard = Guard()
    chosen = np.ones(400, bool)
    guard.predict(rows, chosen, 0, truth)
    assert guard.answer == []
    guard.predict(rows, ~chosen, 350, truth)
    assert guard.answer == list(range(350, 400))
    early, late = Guard(), Guard()
    early.answer, early.correct = list(range(100)), [False] * 100  # forgotten at 400 answers
    late.answer, late.correct = list(range(250, 350)), [False] * 100
    for guard in (early, late):
        guard.predict(rows, np.zeros(400, bool), 350, truth)
    assert early.begun
    assert not late.begun


def test_useless_chosen_answers_lower_the_share_and_useful_ones_raise_it():
    _, rows = random_answers(1_200)
    chosen = np.arange(1_200) >= 600
    model = OrdinalEmbedding(2, "logistic", n_items=20, ridge=0.2, random_state=0)
    useless = rows.copy()
    flip = np.flatnonzero(chosen)[np.random.default_rng(0).random(600) < 0.5]
    useless[flip] = useless[flip][:, [0, 2, 1]]  # answers of a coin
    found = compare_shares(useless, chosen, MODEL, model.fit(useless).embedding_)
    assert found.z < -2.5
    assert next_share(1.0, found) == pytest.approx(0.6)
    assert next_share(0.6, Trial(0.01, 0.002, 600, 200)) == 1.0


def test_equal_kinds_of_answers_leave_the_share_alone():
    moved = 0
    for seed in range(10):
        _, rows = random_answers(900, seed=seed)
        chosen = np.random.default_rng(seed).random(900) < 0.5
        model = OrdinalEmbedding(2, "logistic", n_items=20, ridge=0.2, random_state=0).fit(rows)
        trial = compare_shares(rows, chosen, MODEL, model.embedding_)
        moved += next_share(0.6, trial) != 0.6
    assert moved <= 3


def test_the_share_has_bounds():
    bad, good = Trial(-1.0, 0.01, 100, 50), Trial(1.0, 0.01, 100, 50)
    share = 1.0
    for _ in range(20):
        share = next_share(share, bad)
    assert share == 0.15
    for _ in range(20):
        share = next_share(share, good)
    assert share == 1.0


def test_too_few_answers_of_either_kind_are_no_trial():
    truth, rows = random_answers(300)
    chosen = np.arange(300) >= 250
    assert compare_shares(rows, chosen, MODEL, truth) is None
    assert Guard(begun=True).look(rows, chosen, MODEL, truth) is None


def test_looks_are_spaced_and_tell_why():
    truth, rows = random_answers(1_000)
    chosen = np.arange(1_000) % 2 == 0
    guard = Guard(begun=True)
    assert guard.look(rows[:600], chosen[:600], MODEL, truth) is not None
    assert "chosen quer" in guard.reason
    assert "held-out answers" in guard.reason
    assert guard.look(rows[:700], chosen[:700], MODEL, truth) is None
    assert guard.look(rows[:750], chosen[:750], MODEL, truth) is not None


def test_answers_without_weight_take_no_part():
    truth, rows = random_answers(600)
    chosen = np.arange(600) % 2 == 0
    weights = (np.arange(600) < 150).astype(float)
    assert compare_shares(rows[:600], chosen, MODEL, truth, weights=weights).n_tested == 75


def test_nothing_is_chosen_about_people_who_guess():
    run = simulate(
        20,
        ARR(),
        lambda queries, rng: (rng.random(len(queries)) < 0.5).astype(np.int8),
        n_answers=500,
        embedding=OrdinalEmbedding(2, "logistic", ridge=0.2),
    )
    assert run.at_random.mean() > 0.95


def test_an_experiment_begins_to_choose_when_it_has_learned_something():
    truth = 3.0 * np.random.default_rng(7).normal(size=(20, 2))
    run = simulate(
        20,
        ARR(),
        FromEmbedding(truth, "logistic"),
        n_answers=500,
        embedding=OrdinalEmbedding(2, "logistic", ridge=0.2),
    )
    assert run.at_random[:40].all()
    assert run.at_random[-100:].mean() < 0.5
