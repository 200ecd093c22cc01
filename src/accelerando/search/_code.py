"""Code of functions and classes, as a part of the identity of a search.

A scorer or an estimator that was edited gives other results, so the code of functions and classes
counts, with the global values that they read and what they use of the user's other modules. The
code of installed libraries does not: a new version of a library does not make another search.
"""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["is_users_class", "pieces_of_class", "pieces_of_function"]

Nested = Callable[[Iterable[Any]], Iterator[Any]]
WITHOUT_CONTENT = ("member_descriptor", "_abc_data")  # the types of slots, and of a cache of Python


def pieces_of_function(function: types.FunctionType, nested: Nested, read: Nested) -> Iterator[Any]:
    """Yield bytes that represent a function.

    Parameters
    ----------
    function : function
        The function.
    nested : callable
        Yields the bytes of values that belong to the function: constants, defaults, closures.
    read : callable
        Yields the bytes of values that the function reads from elsewhere.
    """
    yield f"{function.__module__}.{function.__qualname__}".encode()
    if _is_installed(function.__code__.co_filename):
        return
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    yield from nested((code, function.__defaults__, function.__kwdefaults__, cells))
    names = _names_in(code)
    values = {name: function.__globals__.get(name) for name in _globals_of(code)}
    values |= _imports_of(code, function.__globals__.get("__package__"))
    values |= {f"cell {i}": one for i, one in enumerate(cells) if isinstance(one, types.ModuleType)}
    for name, value in sorted(values.items()):
        yield name.encode()
        yield from read((value,))
        if isinstance(value, types.ModuleType) and is_users_module(value):
            yield from _pieces_of_module(value, names, read, set())


def _pieces_of_module(
    module: types.ModuleType, names: set[str], read: Nested, done: set[str]
) -> Iterator[Any]:
    """Yield bytes for the values of a user's module that have one of the `names`."""
    done.add(module.__name__)
    for name in sorted(names & set(vars(module))):
        value = vars(module)[name]
        yield f"{module.__name__}.{name}".encode()
        if not isinstance(value, types.ModuleType):
            yield from read((value,))
        elif is_users_module(value) and value.__name__ not in done:
            yield from _pieces_of_module(value, names, read, done)


def pieces_of_class(cls: type, read: Nested) -> Iterator[Any]:
    """Yield bytes that represent a class: its name, and the code that the user wrote."""
    for one in cls.__mro__:
        yield f"{one.__module__}.{one.__qualname__}".encode()
        if not is_users_class(one):
            continue
        for name, value in sorted(vars(one).items()):
            own = getattr(value, "__func__", value)
            if name.startswith("__") and not isinstance(own, types.FunctionType):
                continue
            if type(value).__name__ not in WITHOUT_CONTENT:
                yield name.encode()
                is_property = isinstance(value, property)
                yield from read((value.fget, value.fset, value.fdel) if is_property else (own,))


def is_users_class(cls: type) -> bool:
    """Return True unless a class belongs to Python, to an installed library, or to this one."""
    module = sys.modules.get(cls.__module__)
    return module is None or is_users_module(module)


def is_users_module(module: types.ModuleType) -> bool:
    """Return True unless a module belongs to Python, to an installed library, or to this one."""
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return file is not None and not _is_installed(file)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes_in(const)


def _globals_of(code: types.CodeType) -> set[str]:
    """Return the names of the global values that a function and those inside it read."""
    return {
        one.argval
        for inner in _codes_in(code)
        for one in dis.get_instructions(inner)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _names_in(code: types.CodeType) -> set[str]:
    """Return all names of globals and attributes in a function and those inside it."""
    return {name for inner in _codes_in(code) for name in inner.co_names}


def _imports_of(code: types.CodeType, package: str | None) -> dict[str, types.ModuleType]:
    """Return the user's modules that a function imports when it is called."""
    found = {}
    for inner in _codes_in(code):
        steps = list(dis.get_instructions(inner))
        for i, one in enumerate(steps):
            if one.opname != "IMPORT_NAME":
                continue
            level = steps[i - 2].argval  # before it: the level of the import, and the names
            name = "." * level + one.argval if isinstance(level, int) else one.argval
            try:
                name = importlib.util.resolve_name(name, package)
                spec = importlib.util.find_spec(name)
                if spec is not None and spec.origin and not _is_installed(spec.origin):
                    found[f"import {name}"] = importlib.import_module(name)
            except Exception:  # noqa: S112 — the call will raise it, too
                continue
    return {name: module for name, module in found.items() if is_users_module(module)}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 — raises if the cell is empty
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    own = str(Path(__file__).parents[1])  # may be installed in place
    libraries = (*site.getsitepackages(), site.getusersitepackages(), sys.prefix + "/lib", own)
    return tuple(folder + os.sep for folder in (*libraries, sysconfig.get_path("stdlib")))


def _is_installed(filename: str) -> bool:
    frozen = filename in ("built-in", "frozen") or filename.startswith("<frozen ")
    return frozen or filename.startswith(_library_folders())
