"""The learner of one experiment."""

import csv

import numpy as np
import pytest

from accelerando.crowd._noise import TSTE
from accelerando.crowd._respond import AlienEggs
from accelerando.crowd.experiment.settings import EmbeddingSettings
from accelerando.crowd.serve.learner import model_settings
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, export, published, statistics
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


def worker(store):
    """A worker with the lease of the ones before it: a slow fit renews the lease."""
    return Worker(store, owner="worker")


def told(lab):
    with lab.store.read() as connection:
        return published.report(connection, lab.find().frame.id)


def newest(lab):
    with lab.store.read() as connection:
        return statistics.embedding(connection, "eggs")[1]


def test_a_new_worker_catches_up_and_begins_where_the_old_one_stopped(lab):
    crowd(lab, 60)
    worker(lab.store).turn()
    before = np.array(newest(lab).positions)
    crowd(lab, 5)
    follower = worker(lab.store)
    follower.turn()
    row = newest(lab)
    assert row.n_answers == 65
    learner = next(iter(follower._learners.values()))
    assert len(learner.rows) == 65
    near = np.linalg.norm(np.array(row.positions) - before) / np.linalg.norm(before)
    assert near < 0.7, "not turned upside down"


def test_held_out_accuracy_is_measured_on_answers_not_seen(lab):
    at_work = worker(lab.store)
    for k in range(10):
        crowd(lab, 30, name=f"p{k}", seed=k)
        at_work.turn()
    with lab.store.read() as connection:
        found = Curve().update(connection, lab.find())
    assert sum(point.tested for point in found) >= 20
    assert 0.6 < found[-1].accuracy <= 1.0


def test_the_choice_of_the_model_and_the_share_of_chosen_queries_are_published_with_reasons(lab):
    at_work = worker(lab.store)
    crowd(lab, 30)
    at_work.turn()
    first = told(lab)
    assert first["guard"]["begun"] is False
    assert "No query is chosen yet" in first["guard"]["reason"]
    for k in range(4):
        crowd(lab, 50, name=f"p{k}", seed=k)
        at_work.turn()
    later = told(lab)
    assert later["reason"].startswith(later["model"])
    assert "held-out random answers" in later["reason"]
    assert later["guard"]["begun"] is True


def test_a_new_worker_keeps_the_share_that_the_guard_had_reached(lab):
    at_work = worker(lab.store)
    for k in range(3):
        crowd(lab, 60, name=f"p{k}", seed=k)
        at_work.turn()
    learner = next(iter(at_work._learners.values()))
    learner.refitter.guard.share = 0.36
    crowd(lab, 3, name="q")
    at_work.turn()
    follower = worker(lab.store)
    crowd(lab, 3, name="r")
    follower.turn()
    guard = next(iter(follower._learners.values())).refitter.guard
    assert (guard.share, guard.begun) == (0.36, True)


def test_each_person_has_a_reliability_with_an_interval(lab):
    at_work = worker(lab.store)
    for k in range(6):
        crowd(lab, 40, name=f"p{k}", seed=k)
    token = lab.token(lab.come(participant="left"))
    for _ in range(40):
        lab.answer(token, lab.look(token).queries[0], "left")
    at_work.turn()
    people = told(lab)["people"]
    assert len(people) == 7
    by_slope = sorted(people.values())
    for slope, low, high, bias in people.values():
        assert -1 <= low <= slope <= high <= 1
        assert abs(bias) <= 1
    assert by_slope[0][3] > 0.4, "the one-sided person has the smallest slope"


def test_every_item_has_an_uncertainty_and_unasked_ones_have_none(tmp_path):
    only = EGGS.replace("warmup", "dimensions: 2, warmup")
    only += "samplers: {arr: {class: ARR, items: [0, 1, 2, 3, 4, 5, 6, 7, 8]}}\n"
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    lab = Lab(store, only)
    crowd(lab, 60)
    worker(store).turn()
    found = told(lab)["uncertainty"]
    assert all(value > 0 for value in found[:9])
    assert found[9:] == [None, None, None]
    with store.read() as connection:
        text = "".join(export.embedding_csv(connection, lab.find(), newest(lab).positions))
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["asked"] for row in rows] == ["true"] * 9 + ["false"] * 3
    assert all(row["x1"] and float(row["uncertainty"]) > 0 for row in rows[:9])
    assert all(row["x1"] == row["x2"] == row["uncertainty"] == "" for row in rows[9:])
    store.close()


@pytest.mark.parametrize("noise", ["gnmds", "tste"])
def test_experiments_may_do_without_reliability(tmp_path, noise):
    given = f"warmup: 20, dimensions: 2, noise: {noise}, reliability: false"
    text = EGGS.replace("warmup: 20", given)
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    lab = Lab(store, text)
    crowd(lab, 60)
    worker(store).turn()
    assert told(lab)["people"] == {}
    assert told(lab)["reason"] == "as the experiment says"
    assert (told(lab)["uncertainty"] is None) == (noise == "gnmds")
    store.close()


def test_the_settings_of_an_experiment_become_those_of_the_model():
    assert model_settings(EmbeddingSettings())["n_components"] == 2
    automatic = model_settings(EmbeddingSettings(dimensions="auto"))
    assert automatic == {"n_components": "auto", "noise": "auto", "lapse": "auto"}
    assert model_settings(EmbeddingSettings(noise="ste"))["lapse"] == 0.05
    assert model_settings(EmbeddingSettings(noise="tste", alpha=3))["noise"] == TSTE(alpha=3.0)
    assert model_settings(EmbeddingSettings(dimensions=3))["n_components"] == 3


def test_the_number_of_dimensions_may_be_chosen_by_the_answers(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    lab = Lab(store, EGGS.replace("{warmup", "{dimensions: auto, warmup"))
    at_work = worker(store)
    for k in range(4):
        crowd(lab, 120, name=f"p{k}", seed=k)
        at_work.turn()
    width = len(newest(lab).positions[0])
    assert f"{width} dimension" in told(lab)["model"]
    assert width == 1, "eggs differ in smoothness only"
    crowd(lab, 5, name="q")
    worker(store).turn()
    assert newest(lab).n_answers == 485
    store.close()
