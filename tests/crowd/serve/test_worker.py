"""The worker: learns, publishes, catches up, and is missed by nobody when it is gone."""

import threading
import time

import numpy as np
import pytest
from sqlalchemy import select

from accelerando.crowd._respond import AlienEggs
from accelerando.crowd.serve.learner import Learner
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import (
    Store,
    experiments,
    participants,
    people,
    published,
    statistics,
)
from accelerando.crowd.store.schema import participant, worker
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


def queued(lab):
    with lab.store.read() as connection:
        return published.left_in_queue(connection, experiments.find(connection, "eggs"))


def test_before_there_are_answers_it_publishes_random_queries(lab):
    assert Worker(lab.store).turn() == 1
    queries = queued(lab)["arr"]
    assert len(queries) == 24
    assert all(query.score is None for query in queries)
    assert newest(lab) is None
    standing = lab.come()
    assert not standing.queries[0].fallback


def test_a_turn_fits_and_asks_what_is_worth_asking(lab):
    worker = Worker(lab.store)
    crowd(lab, 160)
    assert worker.turn() == 1
    row = newest(lab)
    assert row.n_answers == 160
    assert np.array(row.positions).shape == (12, 2)
    queries = queued(lab)["arr"]
    assert any(query.score is not None for query in queries)
    assert any(query.score is None for query in queries), "a share stays random"
    assert worker.turn() == 0, "nothing new, nothing done"
    crowd(lab, 3)
    assert worker.turn() == 1
    assert newest(lab).n_answers == 163
    assert newest(lab).version > row.version


def test_blocked_and_withdrawn_answers_leave_the_embedding(lab):
    crowd(lab, 40, "anna")
    crowd(lab, 30, "bot")
    worker = Worker(lab.store)
    worker.turn()
    assert newest(lab).n_answers == 70
    with lab.store.read() as connection:
        bot = next(people.qualities(connection, lab.find_in(connection)))
    assert bot["participant"] == "bot"
    lab.do(participants.set_blocked, lab.find(), bot["id"], True)
    worker.turn()
    assert newest(lab).n_answers == 40
    lab.do(participants.set_blocked, lab.find(), bot["id"], False)
    worker.turn()
    assert newest(lab).n_answers == 70


def test_an_embedding_of_answers_taken_away_meanwhile_is_not_published(lab, monkeypatch):
    crowd(lab, 40)
    person = lab.come(participant="anna").person
    worker = Worker(lab.store)
    original = Learner.work

    def slow(self, *arguments):
        made = original(self, *arguments)
        lab.do(participants.withdraw, lab.find(), person.id, 1.0)
        return made

    monkeypatch.setattr(Learner, "work", slow)
    worker.turn()
    assert newest(lab) is None


def test_the_worker_deletes_withdrawn_answers_when_they_are_due(lab):
    crowd(lab, 12)
    with lab.store.read() as connection:
        person = next(people.qualities(connection, lab.find_in(connection)))
    lab.do(participants.withdraw, lab.find(), person["id"], time.time() - 6.9 * 86400)
    Worker(lab.store).turn()
    assert lab.n_answers() == 12
    with lab.store.write() as connection:
        connection.execute(participant.update().values(withdrawn=time.time() - 7.1 * 86400))
    Worker(lab.store).turn()
    assert lab.n_answers() == 0


def test_trouble_with_one_experiment_does_not_stop_the_others(lab, monkeypatch):
    other = Lab(lab.store, EGGS.replace("eggs", "other"))
    worker = Worker(lab.store)
    original = Worker._turn

    def turn(self, name):
        if name == "eggs":
            raise ArithmeticError("broken")
        return original(self, name)

    monkeypatch.setattr(Worker, "_turn", turn)
    assert worker.turn() == 1
    assert "broken" in worker._errors["eggs"]
    with lab.store.read() as connection:
        assert published.left_in_queue(connection, experiments.find(connection, other.name))
    monkeypatch.undo()
    worker.turn()
    assert worker._errors == {}


def test_of_two_workers_one_works(lab):
    one, two = Worker(lab.store), Worker(lab.store)
    assert one._renew_lease()
    two.stop.set()  # do not wait
    assert not two._renew_lease()
    follower = Worker(lab.store, owner=one.owner)
    assert follower._renew_lease(), "the same server started it again"
    with lab.store.write() as connection:
        published.release_lease(connection, one.owner)
    assert two._renew_lease()


def test_run_works_until_it_is_told_to_stop(lab):
    worker = Worker(lab.store, turn_seconds=0.01)
    thread = threading.Thread(target=worker.run)
    thread.start()
    crowd(lab, 30)
    end = time.monotonic() + 60
    while newest(lab) is None and time.monotonic() < end:
        time.sleep(0.02)
    worker.stop.set()
    thread.join()
    assert newest(lab) is not None
    with lab.store.read() as connection:
        assert statistics.health(connection, time.time())["worker"]["alive"] is False


def test_a_worker_lives_while_a_fit_takes_long(lab, monkeypatch):
    """A fit of more than twenty seconds once looked like the worker's death."""
    crowd(lab, 30)
    monkeypatch.setattr("accelerando.crowd.serve.worker._RENEW_SECONDS", 0.01)
    one = Worker(lab.store)
    assert one._renew_lease()
    fit, beats = Learner.work, []

    def slow(self, *arguments):
        while len(beats) < 3:
            with lab.store.read() as connection:
                beat = connection.execute(select(worker.c.beat)).scalar_one()
            beats.extend([] if beat in beats else [beat])
        return fit(self, *arguments)

    monkeypatch.setattr(Learner, "work", slow)
    assert one.turn() == 1
    assert beats == sorted(beats)
    assert one.turns == 1


def test_a_worker_that_lost_its_lease_during_a_fit_publishes_nothing(lab, monkeypatch):
    crowd(lab, 30)
    monkeypatch.setattr("accelerando.crowd.serve.worker._RENEW_SECONDS", 0.01)
    one = Worker(lab.store)
    asked = threading.Event()

    def lost():
        asked.set()
        return False

    fit = Learner.work
    monkeypatch.setattr(one, "_renew_lease", lost)
    monkeypatch.setattr(Learner, "work", lambda self, *rest: (asked.wait(30), fit(self, *rest))[1])
    assert one.turn() == 1
    assert one.turns == 0
    assert newest(lab) is None
