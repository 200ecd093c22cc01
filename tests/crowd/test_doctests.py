"""The examples in the docstrings are run."""

import doctest
import importlib
import pkgutil

import pytest

import accelerando.crowd

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(accelerando.crowd.__path__, "accelerando.crowd.")
    if not module.name.endswith("_numba")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
