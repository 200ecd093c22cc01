"""The learner of one experiment."""

import numpy as np
import pytest

from accelerando.crowd._respond import AlienEggs
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, statistics
from accelerando.crowd.store.tally import Curve
from tests.crowd.conftest import Lab

EGGS = "name: eggs\nitems: 12\nparticipants: {answers: null}\nembedding: {warmup: 20}\n"


@pytest.fixture
def lab(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    yield Lab(store, EGGS)
    store.close()


def crowd(lab, count, name="anna", seed=0):
    """So many answers as people give them."""
    eggs, rng = AlienEggs(range(12)), np.random.default_rng(seed)
    token = lab.token(lab.come(participant=name))
    for _ in range(count):
        query = lab.look(token).queries[0]
        left = eggs(np.array([[query.head, query.left, query.right]]), rng)[0]
        lab.answer(token, query, "left" if left else "right")


def newest(lab):
    with lab.store.read() as connection:
        return statistics.embedding(connection, "eggs")[1]


def test_a_new_worker_catches_up_and_begins_where_the_old_one_stopped(lab):
    crowd(lab, 60)
    Worker(lab.store).turn()
    before = np.array(newest(lab).positions)
    crowd(lab, 5)
    follower = Worker(lab.store)
    follower.turn()
    row = newest(lab)
    assert row.n_answers == 65
    learner = next(iter(follower._learners.values()))
    assert len(learner.rows) == 65
    near = np.linalg.norm(np.array(row.positions) - before) / np.linalg.norm(before)
    assert near < 0.7, "not turned upside down"


def test_held_out_accuracy_is_measured_on_answers_not_seen(lab):
    worker = Worker(lab.store)
    for k in range(30):
        crowd(lab, 10, name=f"p{k}", seed=k)
        worker.turn()
    with lab.store.read() as connection:
        found = Curve().update(connection, lab.find())
    assert sum(point.tested for point in found) >= 20
    assert 0.6 < found[-1].accuracy <= 1.0
