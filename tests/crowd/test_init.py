"""The public names of ``accelerando.crowd``."""

import importlib
import pickle
import pkgutil
import types

import pytest

from accelerando import crowd

PUBLIC_MODULES = {"client", "experiment", "serve", "store", "web"}


def test_all_names_the_public_objects():
    exported = {
        name
        for name, value in vars(crowd).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert exported == set(crowd.__all__)


def test_modules_have_a_leading_underscore():
    names = {module.name for module in pkgutil.iter_modules(crowd.__path__)}
    assert {name for name in names if not name.startswith("_")} == PUBLIC_MODULES


@pytest.mark.parametrize("name", ["search", "plan", "simulate"])
def test_a_function_does_not_share_its_name_with_a_module(name):
    assert callable(getattr(crowd, name))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"accelerando.crowd.{name}")


@pytest.mark.parametrize("name", crowd.__all__)
def test_every_public_name_has_a_docstring(name):
    assert getattr(crowd, name).__doc__


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Bellief'"):
        crowd.Bellief  # noqa: B018


def test_estimators_that_earlier_versions_pickled_can_be_loaded():
    model = crowd.OrdinalEmbedding(noise=crowd.TSTE(alpha=2.0))
    data = pickle.dumps(model, protocol=0)
    old = data.replace(b"crowd._embedding", b"crowd.embedding").replace(
        b"crowd._noise", b"crowd.noise"
    )
    assert old != data
    assert pickle.loads(old).noise == crowd.TSTE(alpha=2.0)
