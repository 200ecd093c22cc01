"""The four searches share parameters and their documentation."""

import inspect
import re

import pytest

import accelerando.search
from accelerando.search import _parameters as parameters
from accelerando.search._parameters import SharedParameters, search_class

SEARCHES = [
    getattr(accelerando.search, name)
    for name in (
        "AsyncHalvingSearchCV",
        "HyperbandSearchCV",
        "IncrementalSearchCV",
        "SuccessiveHalvingSearchCV",
    )
]
every_search = pytest.mark.parametrize("cls", SEARCHES, ids=lambda cls: cls.__name__)


def documented(cls, title):
    section = parameters.split_sections(cls.__doc__)[title]
    return [name for entry in parameters.entries(section) for name in entry.split(", ")]


@every_search
def test_every_parameter_is_documented_once_in_the_order_of_the_signature(cls):
    positional = [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    names = documented(cls, "Parameters")
    assert sorted(names) == sorted(inspect.signature(cls).parameters)
    assert [name for name in names if name in positional] == positional


@every_search
def test_documented_defaults_are_those_of_the_signature(cls):
    for entry in parameters.entries(parameters.split_sections(cls.__doc__)["Parameters"]).values():
        found = re.match(r"(\w+) : .*default=(\S+)$", entry.splitlines()[0])
        if found:
            assert str(inspect.signature(cls).parameters[found[1]].default) == found[2]


@every_search
def test_shared_attributes_are_documented(cls):
    shared = documented(SharedParameters, "Attributes")
    assert documented(cls, "Attributes") == shared


@every_search
def test_parameters_are_no_attributes_of_the_class(cls):
    assert [name for name in inspect.signature(cls).parameters if hasattr(cls, name)] == []


@every_search
def test_equality_hash_and_repr_are_those_of_scikit_learn(cls):
    search, other = cls("estimator", {}), cls("estimator", {})
    assert search != other
    assert hash(search) == object.__hash__(search)
    assert repr(search) == f"{cls.__name__}(estimator='estimator', parameters={{}})"


def test_the_positions_are_those_of_dask_ml():
    """The parameters that we add are keyword-only."""
    tail = ["random_state", "scoring", "verbose", "prefix"]
    meta = ["predict_meta", "predict_proba_meta", "transform_meta"]
    middle = ["test_size", "patience", "tol", "fits_per_score", "max_iter"]
    heads = {
        "IncrementalSearchCV": ["n_initial_parameters", "decay_rate", *middle],
        "InverseDecaySearchCV": ["n_initial_parameters", *middle],
        "HyperbandSearchCV": ["max_iter", "aggressiveness", "patience", "tol", "test_size"],
        "SuccessiveHalvingSearchCV": [
            "n_initial_parameters", "n_initial_iter", "max_iter", "aggressiveness", "test_size",
            "patience", "tol",
        ],
    }  # fmt: skip
    for name, head in heads.items():
        signature = inspect.signature(getattr(accelerando.search, name))
        kinds = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        last = {"IncrementalSearchCV": ["scores_per_fit"], "InverseDecaySearchCV": ["decay_rate"]}
        expected = ["estimator", "parameters", *head, *tail, *last.get(name, []), *meta]
        assert [p.name for p in kinds] == expected


def test_a_class_describes_a_shared_parameter_in_its_words():
    @search_class
    class Search(SharedParameters):
        """Summary.

        Parameters
        ----------
        priority : str
            Its words.

        Examples
        --------
        >>> 1 + 1
        2
        """

        first: int = 3

    sections = parameters.split_sections(Search.__doc__)
    assert list(sections) == ["", "Parameters", "Attributes", "Examples"]
    entries = parameters.entries(sections["Parameters"])
    assert entries["priority"] == "priority : str\n    Its words."
    assert "tol" not in entries  # this class has no such parameter
    assert list(inspect.signature(Search).parameters)[:3] == ["estimator", "parameters", "first"]


def test_a_class_without_docstring_stays_without():  # as all are under python -OO
    class Plain(SharedParameters):
        pass

    Plain.__doc__ = None
    assert search_class(Plain).__doc__ is None
