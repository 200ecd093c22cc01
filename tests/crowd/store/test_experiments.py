"""Experiments in the database."""

import pytest

from accelerando.crowd import ARR, Random, Validation
from accelerando.crowd.experiment import Files, Settings, make_experiment, read_upload, read_yaml
from accelerando.crowd.store import experiments
from accelerando.crowd.store import media as stored_media
from accelerando.crowd.store.errors import ApiError
from tests.crowd.web.conftest import png, zipped

EGGS = "name: eggs\nitems: [red, {html: <b>blue</b>}, green]\n"


def made(text, files=None):
    return make_experiment(read_yaml(text), files or Files())


def test_an_experiment_is_stored_with_its_items(store):
    with store.write() as connection:
        number = experiments.add(connection, made(EGGS), 12.5)
        found = experiments.find(connection, "eggs")
        items = experiments.items_of(connection, number)
    assert (found.frame.id, found.frame.created, found.frame.n_items) == (number, 12.5, 3)
    assert (found.state, found.revision, found.queue_version) == ("running", 0, 0)
    assert [(item.kind, item.text) for item in items] == [
        ("text", "red"),
        ("html", "blue"),
        ("text", "green"),
    ]


def test_a_name_is_used_once_and_can_be_replaced(store):
    with store.write() as connection:
        experiments.add(connection, made(EGGS), 1.0)
        experiments.add(connection, made(EGGS), 2.0, "shoes")
        assert experiments.names(connection) == ["eggs", "shoes"]
        assert experiments.find(connection, "shoes").frame.settings.name == "shoes"
        with pytest.raises(ApiError, match="already is an experiment 'eggs'") as error:
            experiments.add(connection, made(EGGS), 3.0)
    assert error.value.code == "name_taken"


def test_an_unknown_name_is_an_error(store):
    with store.read() as connection, pytest.raises(ApiError) as error:
        experiments.find(connection, "none")
    assert (error.value.code, error.value.status) == ("unknown_experiment", 404)


def test_a_change_is_seen_within_its_transaction(store):
    with store.write() as connection:
        number = experiments.add(connection, made(EGGS), 1.0)
        assert not experiments.find(connection, "eggs").paused
        experiments.set_state(connection, number, "paused")
        assert experiments.find(connection, "eggs").paused


def test_a_deleted_experiment_leaves_nothing_and_its_name_is_free(store):
    files = read_upload("p.zip", zipped({f"{k}.png": png(k) for k in range(3)}))
    pictures = make_experiment(read_yaml("name: eggs\n"), files)
    with store.write() as connection:
        number = experiments.add(connection, pictures, 1.0)
        key = pictures.items[0].media
        assert stored_media.media_of(connection, number, key).data == png(0)
        assert set(stored_media.all_media(connection, number)) == set(pictures.media)
        experiments.remove(connection, number)
        assert experiments.names(connection) == []
        assert stored_media.media_of(connection, number, key) is None
        assert experiments.items_of(connection, number) == []
        # SQLite gives the same id again, so the settings must not come from a cache.
        experiments.add(connection, made(EGGS), 2.0)
        assert experiments.find(connection, "eggs").frame.n_items == 3


def test_the_samplers_of_the_settings_are_made():
    settings = Settings.model_validate(
        {
            "name": "eggs",
            "samplers": {
                "arr": {"class": "ARR", "random_share": 0.5, "pairs": 20, "items": [0, 1, 2]},
                "random": {"class": "Random"},
                "known": {"class": "Validation", "queries": [[0, 1, 2]]},
            },
            "shares": {"arr": 2, "random": 1, "known": 1},
        }
    )
    assigner = experiments.make_assigner(settings, 8)
    assert assigner.samplers == {
        "arr": ARR(random_share=0.5, pairs=20, items=(0, 1, 2)),
        "random": Random(),
        "known": Validation(queries=[(0, 1, 2)]),
    }
    assert assigner.shares == {"arr": 2, "random": 1, "known": 1}
    described = settings.samplers["arr"].model_dump_json(by_alias=True)
    alone = experiments.one_sampler_assigner(8, "arr", described)
    assert alone.samplers == {"arr": assigner.samplers["arr"]}


def test_no_two_experiments_have_one_time_of_creation(lab):
    """Links and codes are signed with it, and an archive may name any."""
    one = lab("name: one\nitems: 8\n")
    two = made("name: two\nitems: 8\n")
    with one.store.write() as connection:
        clock = experiments.find(connection, "one").frame.created
        experiments.add(connection, two, clock)
        experiments.add(connection, two, clock, "three")
        times = [experiments.find(connection, n).frame.created for n in ("one", "two", "three")]
    assert times[0] == clock
    assert len(set(times)) == 3
    assert max(times) - clock < 0.01
