"""Model choice by held-out likelihood."""

import numpy as np
import pytest

from accelerando.crowd import TSTE, FromEmbedding, Logistic, OrdinalEmbedding, _choice
from accelerando.crowd._choice import (
    Candidate,
    candidates,
    choose_model,
    log_likelihood,
    present_model,
    tried_models,
    with_dimensions,
)


def answers(n_answers, d=2, noise="logistic", n_items=15, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    truth = scale * rng.normal(size=(n_items, d))
    rows = np.argsort(rng.random((n_answers, n_items)), axis=1)[:, :3]
    left = FromEmbedding(truth, noise)(rows, rng) == 1
    return np.where(left[:, None], rows, rows[:, [0, 2, 1]])


def test_the_true_dimension_is_found():
    for d in (1, 3):
        tried = candidates([2, 1, 3], lapse=0.05)
        found = choose_model(answers(3_000, d), tried, n_items=15)
        assert found.best.n_components == d, found.reason


def test_the_true_noise_model_is_found():
    rows = answers(6_000, noise="logistic", scale=4.0)
    tried = candidates([2], lapse=0.05)[::-1]  # the truth is the last
    assert choose_model(rows, tried, n_items=15).best.noise == Logistic()


def test_only_fair_answers_are_held_out_and_all_others_are_fitted():
    rows, fair = answers(600), np.arange(600) % 4 == 0
    found = choose_model(rows, candidates([2], lapse=0.05), n_items=15, fair=fair)
    assert found.n_tested == fair.sum()
    # Wrong answers to queries that are not fair must not change what is tested, only the fit.
    wrong = rows.copy()
    wrong[~fair] = wrong[~fair][:, [0, 2, 1]]
    spoiled = choose_model(wrong, candidates([2], lapse=0.05), n_items=15, fair=fair)
    assert spoiled.log_likelihood.max() < found.log_likelihood.max() - 0.1


def test_the_current_model_stays_unless_another_is_surely_better():
    rows = answers(300, noise="logistic")
    tried = candidates([2], lapse=0.05)
    for current in tried:
        found = choose_model(rows, tried, n_items=15, current=current)
        if found.best == current:
            continue
        by = dict(zip(found.tried, found.log_likelihood, strict=True))
        assert by[found.best] > by[current]
        assert "better than" in found.reason
    close = [Candidate(Logistic(), 0.05, 2, 0.2), Candidate(Logistic(), 0.05, 2, 0.2001)]
    for current in close:
        found = choose_model(rows, close, n_items=15, current=current)
        assert found.best == current, "a tie changes nothing"


def test_three_dimensions_must_be_better_by_two_standard_errors():
    """A gain of 1.5 standard errors is enough for as many dimensions or fewer, not for more."""
    noise = np.random.default_rng(0).normal(size=400)
    noise -= noise.mean()
    error = noise.std() / 20.0
    present = Candidate(Logistic(), 0.05, 2)
    for d, wins in ((1, True), (2, True), (3, False)):
        other = Candidate(TSTE(), 0.05, d)
        scores = {present: np.zeros(400), other: 1.5 * error + noise}
        assert (_choice._decide(scores, present)[0] == other) == wins
    line = Candidate(Logistic(), 0.05, 1)
    plane = {line: np.zeros(400), present: 1.5 * error + noise}
    assert _choice._decide(plane, line)[0] == present, "a line is left as easily as it is taken"
    three = Candidate(TSTE(), 0.05, 3)
    scores = {present: np.zeros(400), three: 2.5 * error + noise}
    assert _choice._decide(scores, present)[0] == three


def test_the_reason_names_the_choice_and_its_evidence():
    found = choose_model(answers(900, d=1), candidates([2, 1], lapse=0.05), n_items=15)
    assert found.reason.startswith(str(found.best))
    assert "900 held-out random answers" in found.reason
    assert "nats per answer" in found.reason


def test_a_wrong_scale_does_not_count_against_a_model():
    rng = np.random.default_rng(0)
    place = rng.normal(size=(15, 2))
    rows = answers(400)
    one = log_likelihood(rows, place, Logistic(), 0.05)
    double = log_likelihood(rows, 2.0 * place, Logistic(), 0.05)
    assert double.mean() == pytest.approx(one.mean(), abs=0.02)


def test_lapse_rates_are_compared_for_the_best_noise_model():
    found = choose_model(answers(900), candidates([2]), n_items=15)
    rates = {c.lapse for c in found.tried if c.noise == found.best.noise}
    assert rates == {0.05, 0.1, 0.15}


def test_what_the_parameters_of_an_estimator_allow():
    assert [c.noise for c in tried_models(5, "tste", 0.05, None)] == [TSTE(alpha=4.0)]
    assert {c.n_components for c in tried_models("auto", "ste", 0.05, None)} == {1, 2, 3}
    assert {c.ridge for c in tried_models(2, "auto", 0.05, 0.7)} == {0.7}
    assert {c.lapse for c in tried_models(2, "ckl", "auto", None)} == {0.05, 0.1, 0.15}


@pytest.mark.parametrize("d", [1, 2, 4])
def test_other_dimensions_keep_the_widest_directions(d):
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(30, 2)) * [5.0, 0.1]
    found = with_dimensions(wide, d, rng)
    assert found.shape == (30, d)
    order = np.abs(np.corrcoef(found[:, 0], wide[:, 0])[0, 1])
    assert order > 0.99


def test_auto_chooses_at_fit_and_keeps_the_choice_while_answers_are_added():
    rows = answers(1_500, d=1)
    model = OrdinalEmbedding("auto", "auto", "auto", n_items=15, random_state=0)
    model.fit(rows[:1_000])
    assert model.embedding_.shape == (15, model.n_components_) == (15, 1)
    chosen = model.noise_, model.lapse_, model.ridge_
    model.partial_fit(rows[1_000:])
    assert (model.noise_, model.lapse_, model.ridge_) == chosen
    assert model.n_answers_ == 1_500
    assert model.predict_proba(rows[:5]).shape == (5, 2)
    assert model.choice_.reason


def test_auto_may_change_the_dimension_of_a_warm_start():
    model = OrdinalEmbedding("auto", "auto", n_items=15, warm_start=True, random_state=0)
    model.fit(answers(4_000, d=3, scale=4.0))
    assert model.n_components_ == 3
    model.fit(answers(2_000, d=1, seed=1))
    assert model.embedding_.shape == (15, 1)


def test_other_dimensions_start_from_the_present_positions_too(monkeypatch):
    """Cold starts alone favored the dimension of the warm start, on answers to chosen queries."""
    rows, seen = answers(300), {}
    warm = 5.0 * np.random.default_rng(3).normal(size=(15, 2))
    original = _choice.race

    def race(objective, starts, *arguments, **options):
        seen[starts[0].shape[1]] = starts
        return original(objective, starts, *arguments, **options)

    monkeypatch.setattr(_choice, "race", race)
    choose_model(rows, candidates([2, 1, 3], lapse=0.05), n_items=15, starts={2: warm})
    assert [len(seen[d]) for d in (1, 2, 3)] == [2, 1, 2]
    assert np.array_equal(seen[2][0], warm)
    assert np.array_equal(seen[3][1][:, :2], warm)
    widest = with_dimensions(warm, 1, np.random.default_rng(0))
    assert np.allclose(np.abs(seen[1][1]), np.abs(widest))


def test_positions_of_another_fit_keep_their_dimension_unless_another_is_better():
    """A restart of the service knows its last map and not the choice that led to it."""
    rows = answers(60, d=2)  # too few to tell
    for d in (1, 2, 3):
        place = OrdinalEmbedding(d, "logistic", ridge=0.2, n_items=15).fit(rows).embedding_
        model = OrdinalEmbedding("auto", "auto", n_items=15, random_state=0)
        model.fit(rows, init=place)
        assert model.n_components_ == d, model.choice_.reason
    tried = candidates([2, 1, 3])
    assert present_model(tried, None, None) is None
    assert present_model(tried, np.zeros((15, 4)), None) is None
    assert present_model(tried, np.zeros((15, 3)), None).n_components == 3


def test_a_hinge_loss_cannot_be_chosen_by_likelihood():
    with pytest.raises(ValueError, match=r"n_components.*has no probability"):
        OrdinalEmbedding("auto", "gnmds").fit(answers(50))
    with pytest.raises(ValueError, match=r"lapse.*has no probability"):
        OrdinalEmbedding(2, "soe", "auto").fit(answers(50))
