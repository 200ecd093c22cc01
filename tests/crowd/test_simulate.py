import numpy as np
import pytest

from accelerando.crowd import (
    ARR,
    AlienEggs,
    OrdinalEmbedding,
    Random,
    Replay,
    Validation,
    simulate,
    triplet_accuracy,
)

EGGS = AlienEggs(range(20))


def test_a_run_is_decided_by_its_seed():
    first, second = (simulate(20, ARR(), EGGS, n_answers=150, random_state=4) for _ in range(2))
    other = simulate(20, ARR(), EGGS, n_answers=150, random_state=5)
    np.testing.assert_array_equal(first.triplets, second.triplets)
    np.testing.assert_array_equal(first.seconds, second.seconds)
    assert not np.array_equal(first.triplets, other.triplets)


def test_answers_arrive_at_the_rate_and_winners_come_from_the_query():
    run = simulate(20, Random(), EGGS, n_answers=600, rate=5.0, participants=7)
    assert run.seconds[-1] == pytest.approx(600 / 5.0, rel=0.15)
    assert (np.diff(run.seconds) >= 0).all()
    assert set(run.participant.tolist()) == set(range(7))
    np.testing.assert_array_equal(run.triplets[:, 0], run.queries[:, 0])
    np.testing.assert_array_equal(np.sort(run.triplets[:, 1:]), np.sort(run.queries[:, 1:]))


def test_nobody_sees_a_query_twice():
    run = simulate(20, ARR(), EGGS, n_answers=400, participants=3)
    for who in range(3):
        rows = run.queries[run.participant == who]
        keys = {(h, min(a, b), max(a, b)) for h, a, b in rows.tolist()}
        assert len(keys) == len(rows)


def test_refits_come_in_batches():
    often = simulate(20, ARR(), EGGS, n_answers=300, refit_every=10)
    seldom = simulate(20, ARR(), EGGS, n_answers=300, refit_every=60)
    assert often.n_refits > 3 * seldom.n_refits > 0


def test_a_slow_worker_leaves_the_queue_empty_and_random_queries_take_over():
    slow = simulate(20, ARR(), EGGS, n_answers=300, rate=10.0, refit_seconds=20.0, queue_length=20)
    fast = simulate(20, ARR(), EGGS, n_answers=300, rate=10.0, refit_seconds=0.0, queue_length=20)
    assert slow.fallback.mean() > 0.5
    assert fast.fallback.mean() == 0.0


def test_a_share_of_the_answers_after_the_warm_up_is_a_fair_held_out_set():
    sampler = ARR(random_share=0.2, cautious=False)
    run = simulate(40, sampler, AlienEggs(range(40)), n_answers=800, participants=40, warmup=40)
    assert run.at_random[100:].mean() == pytest.approx(0.2, abs=0.05)


def test_random_queries_need_no_embedding():
    run = simulate(20, Random(), EGGS, n_answers=100)
    assert run.embedding is None
    assert run.n_refits == 0
    assert run.at_random.all()


def test_several_samplers_share_the_work():
    samplers = {"arr": ARR(), "check": Validation(queries=[(0, 1, 19)])}
    run = simulate(20, samplers, EGGS, n_answers=400, shares={"arr": 9, "check": 1})
    assert 20 < run.sampler.count("check") < 70


def test_snapshots_are_kept():
    run = simulate(20, ARR(), EGGS, n_answers=200, snapshots=[100, 200])
    assert sorted(run.snapshots) == [100, 200]
    assert run.snapshots[200].shape == (20, 2)


def test_a_run_can_be_stopped_at_a_snapshot():
    seen = []

    def stop(triplets, positions):
        seen.append((len(triplets), positions is None))
        return len(triplets) >= 100

    run = simulate(20, ARR(), EGGS, n_answers=400, snapshots=[10, 50, 100, 200], stop=stop)
    whole = simulate(20, ARR(), EGGS, n_answers=400)
    assert seen == [(10, True), (50, False), (100, False)]
    np.testing.assert_array_equal(run.triplets, whole.triplets[:100])


def test_recorded_answers_can_be_replayed():
    recorded = simulate(20, Random(), EGGS, n_answers=2_000).triplets
    run = simulate(20, Random(), Replay(recorded), n_answers=300, random_state=1)
    assert run.n_skipped > 0
    assert {tuple(row) for row in run.triplets.tolist()} <= {tuple(r) for r in recorded.tolist()}


def test_active_queries_learn_more_from_as_many_answers():
    eggs = AlienEggs(range(30))
    held_out = simulate(30, Random(), eggs, n_answers=2_000, random_state=99).triplets

    def accuracy(sampler, seed):
        run = simulate(30, sampler, eggs, n_answers=400, random_state=seed)
        model = OrdinalEmbedding(n_items=30, random_state=0).fit(run.triplets)
        return triplet_accuracy(model.embedding_, held_out)

    gains = [accuracy(ARR(), seed) - accuracy(Random(), seed) for seed in range(4)]
    assert np.mean(gains) > 0.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_answers": 0}, "'n_answers' .* at least 1. Got 0"),
        ({"n_answers": 5, "rate": 0.0}, "'rate' .* above 0"),
        ({"n_answers": 5, "participants": 0}, "'participants' .* at least 1"),
        ({"n_answers": 5, "refit_every": 0}, "'refit_every' .* at least 1"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        simulate(20, Random(), EGGS, **settings)
