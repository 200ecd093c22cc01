"""What ``accelerando.crowd`` offers is what its modules declare, no more and no less."""

import importlib
import pkgutil
import types

from accelerando import crowd

NOT_FOR_USERS = {
    "as_queries",
    "as_triplets",
    "as_weights",
    "Triplets",
    "deal",
    "draw_queries",
    "ResponseModel",
    "draw_embedding",
    "Search",
}

# The command line and the web service: used by commands and by HTTP, not by importing names.
SERVICE = {"_cli", "_demo", "_demo_colors", "_demo_participants", "_forecast", "_kernel_numba"}


def test_public_names_are_exported():
    declared = set()
    for module in pkgutil.iter_modules(crowd.__path__):
        if module.name.startswith("_") and module.name not in SERVICE:
            loaded = importlib.import_module(f"accelerando.crowd.{module.name}")
            declared |= set(getattr(loaded, "__all__", ()))
    exported = {
        name
        for name, value in vars(crowd).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert exported == declared - NOT_FOR_USERS


def test_every_public_name_has_a_docstring():
    for name, value in vars(crowd).items():
        if not name.startswith("_") and callable(value):
            assert value.__doc__, name
