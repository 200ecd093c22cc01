"""Searches in the demo: both get the same number of calls, and curves count every call."""

import numpy as np

from accelerando.demo._search import best_so_far, calls_to, mean_curve


def test_both_searches_have_nearly_the_same_number_of_calls(results):
    (hyperband,), (at_random,) = results.searches["Hyperband"], results.searches["random search"]
    assert len(hyperband) - 9 < len(at_random) <= len(hyperband)


def test_curves_rise_to_an_accuracy_that_is_no_guess(results):
    for (curve,) in results.searches.values():
        assert (np.diff(curve) >= 0).all()
        assert curve[-1] > 0.8


def test_random_search_trains_one_model_after_the_other():
    rows = [(0, 1, 0.1), (0, 3, 0.3), (1, 2, 0.2)]
    history = [
        dict(zip(("model_id", "partial_fit_calls", "score"), row, strict=True)) for row in rows
    ]
    assert best_so_far(history).tolist() == [0.1, 0.1, 0.3, 0.3, 0.3]


def test_means_end_with_the_shortest_curve():
    mean = mean_curve([np.array([0.0, 1.0]), np.array([1.0, 1.0, 1.0])])
    assert mean.tolist() == [0.5, 1.0]
    assert calls_to(mean, 1.0) == 2
    assert calls_to(mean, 2.0) is None
