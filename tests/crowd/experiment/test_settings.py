"""Settings of an experiment."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from accelerando.crowd.experiment import (
    Experiment,
    Files,
    SettingsError,
    make_experiment,
    read_yaml,
)
from accelerando.crowd.experiment.settings import Settings
from accelerando.crowd.store.experiments import make_assigner


def problems(text, files=None):
    with pytest.raises(SettingsError) as refused:
        make_experiment(read_yaml(text), files or Files())
    return refused.value.problems


def outcome(document):
    """The experiment, or the problems with it."""
    try:
        return make_experiment(document, Files())
    except SettingsError as error:
        return error.problems


def test_items_that_do_not_exist_are_found_wherever_they_are_named():
    found = problems(
        "items: [a, b, c]\n"
        "practice: [{head: 0, left: 1, right: 7, winner: 1}]\n"
        "checks:\n  queries:\n    - {head: 9, left: 1, right: 2, winner: 1}\n"
        "samplers: {s: {class: ARR, items: [0, 1, 5]}}\n"
        "fixed: {1: {query: [0, 1, 8]}}\n"
    )
    assert [p.line for p in found] == [2, 5, 6, 7]
    assert "0 to 2" in found[0].remedy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 99) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=10,
)


keys = st.sampled_from([*Settings.model_fields, "items", "targets", "html", "sampling"])


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(keys, json_values))
def test_any_values_under_our_keys_are_read_or_refused(values):
    found = outcome(read_yaml(json.dumps(values)))
    assert found
    if isinstance(found, Experiment):
        make_assigner(found.settings, len(found.items))


@pytest.mark.parametrize(
    ("embedding", "says"),
    [
        ({"noise": "ste", "alpha": 2}, "alpha is a parameter of noise: tste only"),
        ({"alpha": 2}, "alpha is a parameter of noise: tste only"),
        ({"noise": "tste", "alpha": 0}, "greater than 0"),
        ({"noise": "soe", "dimensions": "auto"}, "dimensions must be a number with noise: soe"),
        ({"noise": "gnmds", "lapse": "estimate"}, "lapse must be a number with noise: gnmds"),
    ],
)
def test_settings_of_the_embedding_that_contradict_each_other_are_refused(embedding, says):
    with pytest.raises(ValidationError, match=says):
        Settings(embedding=embedding)


def test_the_embedding_is_chosen_by_the_answers_by_default():
    embedding = Settings().embedding
    assert (embedding.noise, embedding.alpha, embedding.reliability) == ("auto", None, True)
    assert Settings(embedding={"noise": "tste", "alpha": 2.5}).embedding.alpha == 2.5


def test_a_sampler_needs_three_items():
    """With two of them it once failed for each participant, after the start."""
    two = {"samplers": {"few": {"class": "Random", "items": [3, 5, 3]}}}
    with pytest.raises(ValueError, match="at least 3 different items"):
        Settings.model_validate(two)
    with pytest.raises(ValueError, match="at least 3 different items"):
        Settings.model_validate({"samplers": {"few": {"class": "ARR", "items": []}}})
    # One that is stored already must not keep the server from showing the other experiments.
    assert Settings.model_validate(two, context={"stored": True}).samplers["few"].items == [3, 5, 3]
