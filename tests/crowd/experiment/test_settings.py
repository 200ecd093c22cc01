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
from accelerando.crowd.experiment.settings import EmbeddingSettings, Settings
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


def test_the_number_of_dimensions_is_chosen_where_answers_have_a_likelihood():
    assert EmbeddingSettings().dimensions == 2
    assert EmbeddingSettings(dimensions="auto").dimensions == "auto"
    assert EmbeddingSettings(noise="tste", dimensions="auto").dimensions == "auto"
    assert EmbeddingSettings(noise="gnmds", dimensions=3).dimensions == 3
    with pytest.raises(ValidationError, match="dimensions must be a number with noise: soe"):
        EmbeddingSettings(noise="soe", dimensions="auto")


NUMBERS = [
    "participants: {answers: %s}",
    "participants: {total_answers: %s}",
    "participants: {withdrawn_days: %s}",
    "participants: {dropout_minutes: %s}",
    "embedding: {dimensions: %s}",
    "embedding: {alpha: %s, noise: tste}",
    "embedding: {temper: %s}",
    "embedding: {lapse: %s}",
    "breaks: {seconds: %s}",
    "pause_between: %s",
    "seed: %s",
    "target_accuracy: %s",
    "shares: {arr: %s}",
    "checks: {every: %s}",
    "samplers: {a: {class: ARR, random_share: %s}}",
    "samplers: {a: {class: ARR, pairs: %s}}",
    "samplers: {a: {class: Random, items: [%s, 2, 3]}}",
    "practice: [{head: %s, left: 2, right: 3}]",
]


@pytest.mark.parametrize("value", ["true", ".nan", ".inf", "-1e400"])
@pytest.mark.parametrize("setting", NUMBERS)
def test_a_number_is_neither_true_nor_infinite(setting, value):
    """True once counted as 1, and an infinite share was answered with 500."""
    found = problems(f"items: 8\n{setting % value}\n")
    assert {problem.line for problem in found} == {2}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("samplers: {a: {class: Random, items: [1, 1, 1]}}", "at least three different items"),
        ("samplers: {a: {class: RoundRobin, items: []}}", "at least three different items"),
        ("samplers: {a: {class: Validation, queries: []}}", "no queries"),
        ("samplers: {a: {class: Validation, queries: [[3, 2, 3]]}}", "the same item twice"),
        (
            "samplers: {a: {class: Validation, items: [0, 1, 2], queries: [[0, 1, 3]]}}",
            "not among the items",
        ),
        ("fixed: {1: {query: [2, 2, 2]}}", "the same item twice"),
        ("fixed: {1: {}}", "neither a sampler nor a query"),
        ("samplers: {a: {class: ARR}, b: {class: ARR}}\nshares: {a: 1e308, b: 1e308}", "finite"),
        (f"consent: {{text: x, version: {'v' * 65}}}", "at most 64"),
    ],
)
def test_what_would_fail_when_people_come_is_refused_at_the_start(setting, says):
    """Each was stored, and then answered people with 500, or nobody could restore its archive."""
    (problem,) = problems(f"items: 8\n{setting}\n")
    assert says in f"{problem.message} {problem.remedy}"


@pytest.mark.parametrize(
    ("redirect", "refused"),
    [
        ("https://{host}/done", True),
        ("https://a.{host}/", True),
        ("https://x.org@{host}/", True),
        ("https://x.org{id}/", True),  # id=.evil.example
        ("https://x.org:{id}/", True),
        ("http://{id}", True),
        ("https://{id}.org", True),
        ("https://{id}?x=1", True),
        ("https://{id}\\x.y.org", True),
        ("https://{school}.sona-systems.com/done?id={id}", False),
        ("https://x.org/{id}?done={participant}", False),
        ("https://x.org?id={id}", False),
    ],
)
def test_a_link_does_not_choose_where_people_are_sent(redirect, refused):
    """An open redirect: the host came from the participant's own link."""
    made = Settings(completion={"done": {"redirect": redirect}})
    assert bool(made.open_redirects()) is refused
    assert not made.problems(8), "an archive of a running study opens all the same"
    if refused:
        text = json.dumps(redirect)
        (found,) = problems(f"items: 8\ncompletion: {{done: {{redirect: {text}}}}}\n")
        assert found.key == "completion.done.redirect"
