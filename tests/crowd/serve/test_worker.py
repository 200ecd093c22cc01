"""The worker: learns, publishes, catches up, and is missed by nobody when it is gone."""

import threading
import time

import numpy as np
import pytest
from distributed import LocalCluster

from accelerando.crowd._noise import TSTE
from accelerando.crowd._posterior import Belief
from accelerando.crowd._respond import AlienEggs
from accelerando.crowd.serve.cluster import ClusterSearch
from accelerando.crowd.serve.learner import Study
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, experiments, participants, published, statistics
from tests.crowd.store.conftest import Lab

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
    crowd(lab, 60)
    assert worker.turn() == 1
    row = newest(lab)
    assert row.n_answers == 60
    assert np.array(row.positions).shape == (12, 2)
    queries = queued(lab)["arr"]
    assert any(query.score is not None for query in queries)
    assert any(query.score is None for query in queries), "a share stays random"
    assert worker.turn() == 0, "nothing new, nothing done"
    crowd(lab, 3)
    assert worker.turn() == 1
    assert newest(lab).n_answers == 63
    assert newest(lab).version > row.version


def test_a_new_worker_catches_up_and_begins_where_the_old_one_stopped(lab):
    crowd(lab, 60)
    Worker(lab.store).turn()
    before = np.array(newest(lab).positions)
    crowd(lab, 5)
    follower = Worker(lab.store)
    follower.turn()
    row = newest(lab)
    assert row.n_answers == 65
    study = next(iter(follower._studies.values()))
    assert len(study.rows) == 65
    near = np.linalg.norm(np.array(row.positions) - before) / np.linalg.norm(before)
    assert near < 0.7, "not turned upside down"


def test_blocked_and_withdrawn_answers_leave_the_embedding(lab):
    crowd(lab, 40, "anna")
    crowd(lab, 30, "bot")
    worker = Worker(lab.store)
    worker.turn()
    assert newest(lab).n_answers == 70
    bot = lab.come(participant="bot").person
    lab.do(participants.set_blocked, lab.find(), bot.id, True)
    worker.turn()
    assert newest(lab).n_answers == 40
    lab.do(participants.set_blocked, lab.find(), bot.id, False)
    worker.turn()
    assert newest(lab).n_answers == 70


def test_an_embedding_of_answers_taken_away_meanwhile_is_not_published(lab, monkeypatch):
    crowd(lab, 40)
    person = lab.come(participant="anna").person
    worker = Worker(lab.store)
    original = Study.work

    def slow(self, *arguments):
        made = original(self, *arguments)
        lab.do(participants.withdraw, lab.find(), person.id, 1.0)
        return made

    monkeypatch.setattr(Study, "work", slow)
    worker.turn()
    assert newest(lab) is None


def test_held_out_accuracy_is_measured_on_answers_not_seen(lab):
    worker = Worker(lab.store)
    for k in range(30):
        crowd(lab, 10, name=f"p{k}", seed=k)
        worker.turn()
    with lab.store.read() as connection:
        found = statistics.points(connection, lab.find())
    assert sum(point.tested for point in found) >= 20
    assert 0.6 < found[-1].accuracy <= 1.0


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
    assert one._beat()
    two.stop.set()  # do not wait
    assert not two._beat()
    follower = Worker(lab.store, owner=one.owner)
    assert follower._beat(), "the same server started it again"
    with lab.store.write() as connection:
        published.release(connection, one.owner)
    assert two._beat()


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


def test_a_large_search_runs_on_a_cluster_and_here_when_the_cluster_is_gone(caplog):
    positions = np.random.default_rng(0).normal(size=(400, 2))
    belief = Belief(positions, positions[:50], np.zeros((400, 50)), TSTE())
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        search = ClusterSearch(cluster.scheduler_address, seconds=0.2)
        found = search(belief, heads=[0, 1, 2], top=2, random_state=0)
        search.close()
    assert sorted(set(found.queries[:, 0].tolist())) == [0, 1, 2]
    assert len(found.queries) == 6
    assert found.n_scored > 1000
    search = ClusterSearch("tcp://127.0.0.1:9", seconds=0.1, patience=1)
    assert len(search(belief, heads=[5], random_state=0).queries) == 1
    assert "searching here" in caplog.text
