"""The former training package refuses what it pickled, and nothing else."""

from __future__ import annotations

import importlib
import pickle

import pytest

from accelerando.exceptions import StateError


@pytest.mark.parametrize(
    ("module", "name"),
    [("estimators", "NeuralNetClassifier"), ("run", "Run"), ("cluster.rank", "Rank")],
)
def test_unpickling_an_object_of_version_0_1_says_what_to_do(module, name):
    content = f"caccelerando.train.{module}\n{name}\n.".encode()  # a reference, and nothing else
    message = r"pickled by accelerando 0\.1.*save_state file with load_state, or train again\.$"
    with pytest.raises(StateError, match=message):
        pickle.loads(content)


def test_other_modules_are_imported_as_ever():
    importlib.import_module("accelerando.train")
    assert importlib.import_module("accelerando.exceptions").StateError is StateError
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("accelerando.training")
