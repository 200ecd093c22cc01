import math

from accelerando.search._schedule import Candidate, prioritize, shared_scores


def candidates(*scores, bracket=0, path=9):
    return [Candidate(i, bracket, score, path, i) for i, score in enumerate(scores)]


def order(jobs, n_workers=1, priority="score"):
    return [job.model for job in prioritize(jobs, n_workers, priority)]


def test_high_scores_first():
    assert order(candidates(0.1, 0.9, 0.5)) == [1, 2, 0]


def test_fifo_looks_at_the_turn_only():
    assert order(candidates(0.1, 0.9, 0.5), priority="fifo") == [0, 1, 2]


def test_the_worst_p_of_a_bracket_share_the_median():
    jobs = candidates(0.1, 0.2, 0.6, 0.9)
    assert shared_scores(jobs, n_workers=3) == {0: 0.2, 1: 0.2, 2: 0.2}
    # with equal priority the critical path decides, so the worst goes first
    jobs[0] = jobs[0]._replace(path=27)
    assert order(jobs, n_workers=3) == [3, 0, 1, 2]
    assert order(jobs, n_workers=1) == [3, 2, 1, 0]


def test_brackets_are_shared_apart():
    jobs = [
        Candidate(0, 0, 0.1, 9, 0),
        Candidate(1, 0, 0.3, 9, 1),
        Candidate(2, 1, 0.7, 9, 2),
        Candidate(3, 1, 0.9, 9, 3),
    ]
    shared = shared_scores(jobs, 2)
    assert {model: round(score, 6) for model, score in shared.items()} == {
        0: 0.2, 1: 0.2, 2: 0.8, 3: 0.8,
    }  # fmt: skip


def test_models_without_a_score_come_after_those_with_one_and_before_nan():
    assert order(candidates(math.nan, None, 0.9, 0.2)) == [2, 3, 1, 0]


def test_the_model_that_determines_the_end_of_the_search_comes_first():
    jobs = [Candidate(0, 0, 0.9, 1, 0), Candidate(1, 0, 0.1, 9, 1), Candidate(2, 1, None, 8, 2)]

    def first(calls_left, n_workers=1):
        return [job.model for job in prioritize(jobs, n_workers, "score", calls_left)]

    assert first(calls_left=100) == [0, 1, 2]
    assert first(calls_left=13) == [1, 0, 2]  # 1.5 times 9 calls is more than is left
    assert first(calls_left=12) == [1, 2, 0]
    jobs = [Candidate(0, 0, 0.9, 1, 0), Candidate(1, 1, 0.1, 9, 1)]
    assert first(calls_left=27, n_workers=2) == [1, 0]  # 1.5 times 9 calls of two workers
    assert first(calls_left=28, n_workers=2) == [0, 1]


def test_of_equal_models_the_one_that_waits_longest_comes_first():
    jobs = [Candidate(0, 0, 0.5, 9, issued=8), Candidate(1, 1, 0.5, 9, issued=7)]
    assert order(jobs) == [1, 0]
    assert order([job._replace(score=None) for job in jobs]) == [1, 0]
