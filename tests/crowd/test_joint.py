"""Joint fits of positions and participants."""

import numpy as np
import pytest

from accelerando.crowd import AlienEggs, OrdinalEmbedding


def crowd(bad, kind, n_people=40, each=40, seed=0):
    """(triplets, participants, left, held-out triplets); the first ``bad`` people are careless."""
    rng = np.random.default_rng(seed)
    eggs = AlienEggs(np.sort(rng.random(20)))
    rows = np.argsort(rng.random((n_people * each + 4_000, 20)), axis=1)[:, :3]
    left = eggs(rows, rng) == 1
    who = np.repeat(np.arange(n_people), each)
    theirs = np.flatnonzero(who < bad)
    if kind == "guess":
        left[theirs] = rng.random(len(theirs)) < 0.5
    elif kind == "left":
        left[theirs] = True
    else:
        left[theirs] = ~left[theirs]
    triplets = np.where(left[:, None], rows, rows[:, [0, 2, 1]])
    n = len(who)
    return triplets[:n], who, left[:n], triplets[n:]


@pytest.mark.parametrize("kind", ["guess", "left", "opposite"])
def test_careless_people_do_no_harm(kind):
    triplets, who, left, test = crowd(14, kind)
    plain = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0).fit(triplets)
    joint = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0)
    joint.fit(triplets, participants=who, left=left)
    best = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0).fit(triplets[who >= 14])
    assert joint.score(test) > best.score(test) - 0.012
    assert joint.score(test) >= plain.score(test) - 0.002
    slope = joint.reliability_.slope
    assert slope[14:].mean() > slope[:14].mean() + 0.4


def test_opposite_answers_count_the_right_way_round():
    triplets, who, left, test = crowd(12, "opposite", each=30)
    joint = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0)
    joint.fit(triplets, participants=who, left=left)
    without = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0).fit(triplets[who >= 12])
    assert joint.score(test) > without.score(test) - 0.005


def test_weight_zero_leaves_an_answer_out():
    triplets, who, left, _ = crowd(10, "guess")
    kept = who >= 10
    model = OrdinalEmbedding(1, "logistic", random_state=0)
    weighted = model.fit(triplets, sample_weight=kept, participants=who, left=left)
    assert weighted.reliability_.people.tolist() == list(range(10, 40))


def test_adding_answers_with_participants_equals_one_fit():
    triplets, who, left, test = crowd(8, "guess")
    at_once = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0)
    at_once.fit(triplets, participants=who, left=left)
    later = OrdinalEmbedding(1, "logistic", ridge=0.2, random_state=0)
    order = np.random.default_rng(0).permutation(len(who))
    for part in np.array_split(order, 4):
        later.partial_fit(triplets[part], participants=who[part], left=left[part])
    assert later.n_answers_ == len(who)
    assert later.score(test) == pytest.approx(at_once.score(test), abs=0.01)
    np.testing.assert_allclose(later.reliability_.slope, at_once.reliability_.slope, atol=0.1)


def test_participants_must_come_with_all_answers_or_none():
    triplets, who, left, _ = crowd(8, "guess")
    model = OrdinalEmbedding(1, "logistic", random_state=0).fit(triplets, participants=who)
    with pytest.raises(ValueError, match="participants must be passed to fit and to partial_fit"):
        model.partial_fit(triplets[:5])
    with pytest.raises(ValueError, match="left must be passed"):
        model.partial_fit(triplets[:5], participants=who[:5], left=left[:5])
    with pytest.raises(ValueError, match="participants must have shape"):
        model.fit(triplets, participants=who[:-1])


def test_a_hinge_loss_has_no_probability_to_weigh_people_by():
    triplets, who, _, _ = crowd(8, "guess")
    with pytest.raises(ValueError, match=r"participants.*has no probability"):
        OrdinalEmbedding(1, "gnmds").fit(triplets, participants=who)
