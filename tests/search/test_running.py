"""A search while ``fit`` runs in another thread: copies of it. Stopping it: ``test_limits.py``."""

import copy
import pickle
import threading

import cloudpickle
import numpy as np
import pytest

from accelerando.search import HyperbandSearchCV

from .searches import SPACE, counters, hyperband


@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda one: pickle.loads(cloudpickle.dumps(one))]
)
def test_a_copy_of_a_search_that_runs_does_not_run(copy_of):
    copies = []

    def score(model, X, y):
        if not copies:
            copies.append(copy_of(search))
        return 0.0

    search = hyperband(scoring=score)
    search.fit(np.zeros((10, 2)), np.arange(10) % 2)
    (copied,) = copies
    assert isinstance(copied, HyperbandSearchCV)
    assert list(copied.parameters) == list(SPACE)
    with pytest.raises(RuntimeError, match="no search is running"):
        copied.stop()
    copied.set_params(scoring=None)
    assert copied.fit(np.zeros((10, 2)), np.arange(10) % 2).stop_reason_ == "finished"


def test_the_best_so_far_can_be_read_while_it_runs_and_after(data):
    search = counters(max_iter=81)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(_first_best(search)))
    reader.start()
    search.fit(*data)
    reader.join()
    assert set(seen[0]) == set(search.best_so_far_)
    assert search.best_so_far_["score"] == search.best_score_ >= seen[0]["score"]


def _first_best(search):
    while (best := search.best_so_far_) is None:
        pass
    return best
