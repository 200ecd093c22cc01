import sys
import tracemalloc

import numpy as np
import pytest

from accelerando.crowd import TSTE, OrdinalEmbedding, information_gain, search
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._score import head_entropy, uncertainty


@pytest.fixture
def posterior(eggs):
    rows = eggs(25, 600, seed=0).triplets
    return Posterior.from_embedding(OrdinalEmbedding(random_state=0).fit(rows), rows)


def brute_force(posterior, head, feet):
    left, right = np.triu_indices(len(feet), 1)
    rows = np.array([(head, feet[a], feet[b]) for a, b in zip(left, right, strict=True)])
    rows = rows[(rows[:, 1] != head) & (rows[:, 2] != head)]
    return rows, information_gain(rows, posterior)


def test_each_head_gets_its_best_feet(posterior):
    found = search(posterior)
    assert found.queries[:, 0].tolist() == list(range(25))
    for query, score in zip(found.queries, found.scores, strict=True):
        _, gains = brute_force(posterior, query[0], np.arange(25))
        assert score == pytest.approx(gains.max(), abs=1e-5)
        assert information_gain([query], posterior)[0] == pytest.approx(gains.max(), abs=1e-5)


def test_the_best_few_come_best_first(posterior):
    found = search(posterior, heads=[3], top=5)
    _, gains = brute_force(posterior, 3, np.arange(25))
    np.testing.assert_allclose(found.scores, np.sort(gains)[::-1][:5], atol=1e-5)


def test_feet_come_from_the_items_that_are_allowed(posterior):
    allowed = [2, 3, 5, 11, 17]
    found = search(posterior, items=allowed, top=3)
    assert set(found.queries.ravel().tolist()) <= set(allowed)
    assert sorted(set(found.queries[:, 0].tolist())) == allowed


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_threads_and_backends_agree(posterior, backend):
    if backend == "numba":
        pytest.importorskip("numba")
    alone = search(posterior, backend="numpy")
    other = search(posterior, backend=backend, threads=2)
    np.testing.assert_allclose(alone.scores, other.scores, atol=1e-5)


def test_blocks_do_not_change_the_result(eggs):
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(60, 2))
    table = -rng.gamma(1.0, 3.0, size=(60, 60))
    posterior = Posterior(positions, positions, table, TSTE(), 0.05)
    found = search(posterior)
    assert found.n_scored == 60 * 59 * 58 // 2
    np.testing.assert_allclose(found.scores, information_gain(found.queries, posterior), atol=1e-5)


def test_a_sample_of_pairs_is_a_sample(posterior):
    found = search(posterior, pairs=40, random_state=0)
    again = search(posterior, pairs=40, random_state=0)
    np.testing.assert_array_equal(found.queries, again.queries)
    assert 25 * 40 - 2 * 40 <= found.n_scored <= 25 * 40
    assert (found.scores <= search(posterior).scores + 1e-6).all()


def test_time_that_is_up_still_gives_an_answer_and_time_enough_gives_the_best(posterior):
    hurried = search(posterior, seconds=0.0, random_state=0)
    assert len(hurried.queries) == 25
    patient = search(posterior, seconds=60.0, random_state=0)
    np.testing.assert_allclose(patient.scores, search(posterior).scores, atol=1e-6)
    assert hurried.n_scored <= patient.n_scored


@pytest.mark.parametrize("threads", [1, 2])
def test_time_limits_a_search_of_more_pairs_than_memory_could_list(threads):
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(30_000, 2))
    posterior = Posterior(positions, positions[:10], np.zeros((30_000, 10)), TSTE())
    tracemalloc.start()
    found = search(posterior, heads=[0, 1], seconds=0.05, threads=threads, random_state=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.queries) == 2
    assert found.n_scored < 30_000**2 // 2  # not all, which would take minutes
    assert peak < 100e6  # a list of all pairs takes 3.6 GB


def test_many_items_are_sampled_automatically():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(1200, 2))
    posterior = Posterior(positions, positions[:50], np.zeros((1200, 50)), TSTE())
    found = search(posterior, heads=[0, 1, 2], pairs=500, random_state=0)
    assert found.n_scored <= 1500
    automatic = search(posterior, heads=np.arange(1200), random_state=0)
    assert len(automatic.queries) == 1200
    assert automatic.n_scored < 1200 * 1199 * 1198 // 2


def test_uncertainty_is_highest_where_both_feet_are_equally_far(posterior):
    found = search(posterior, score="uncertainty")
    np.testing.assert_allclose(found.scores, uncertainty(found.queries, posterior), atol=1e-6)
    assert found.scores.min() > 0.6


def test_without_the_heads_entropy_the_best_known_head_wins_every_time(eggs):
    """The constant head of appendix E: the hundred best queries ask about one head."""
    rows = eggs(40, 800, seed=0).triplets
    # As Salmon has it, an answer counts for its head only.
    posterior = Posterior.from_embedding(OrdinalEmbedding(random_state=0).fit(rows), rows, feet=0.0)

    def heads_of_best(found):
        return found.queries[np.argsort(-found.scores)[:100], 0]

    wrong = heads_of_best(search(posterior, top=100, include_head=False))
    right = heads_of_best(search(posterior, top=100))
    assert set(wrong.tolist()) == {head_entropy(posterior).argmin()}
    assert len(set(right.tolist())) > 1
    assert wrong[0] not in right


def test_without_numba_the_search_says_how_to_get_it_and_auto_goes_on(posterior, monkeypatch):
    monkeypatch.delattr("accelerando.crowd._kernel_numba", raising=False)
    monkeypatch.setitem(sys.modules, "accelerando.crowd._kernel_numba", None)
    with pytest.raises(ImportError, match=r"pip install 'accelerando\[fast\]'"):
        search(posterior, backend="numba")
    np.testing.assert_array_equal(
        search(posterior).scores, search(posterior, backend="numpy").scores
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"items": [0, 1]}, "'items' .* at least 3"),
        ({"heads": [25]}, "'heads' .* at least 1 of the item numbers 0 to 24"),
        ({"score": "entropy"}, "'score' .* 'information gain'"),
        ({"pairs": 0}, "'pairs' .* 'auto' or 'all'"),
        ({"top": 0}, "'top' .* at least 1"),
        ({"backend": "torch"}, "'backend' .* 'numba'"),
    ],
)
def test_wrong_settings_are_named(posterior, settings, says):
    with pytest.raises(ValueError, match=says):
        search(posterior, **settings)
