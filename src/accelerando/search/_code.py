"""Code of functions and classes, as a part of the identity of a search.

A scorer or an estimator that was edited gives other results, so the code of functions and classes
counts, with the global values that they read. The code of installed libraries does not: a new
version of a library does not make another search.
"""

from __future__ import annotations

import dis
import functools
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["is_users_class", "pieces_of_class", "pieces_of_function"]

Nested = Callable[[Iterable[Any]], Iterator[Any]]


def pieces_of_function(function: types.FunctionType, nested: Nested) -> Iterator[Any]:
    """Yield bytes that represent a function.

    Parameters
    ----------
    function : function
        The function.
    nested : callable
        Yields the bytes of the values that it is given.
    """
    yield f"{function.__module__}.{function.__qualname__}".encode()
    if _is_installed(function.__code__.co_filename):
        return
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    yield from nested((function.__code__, function.__defaults__, function.__kwdefaults__, cells))
    for name in sorted(_globals_of(function.__code__)):
        value = function.__globals__.get(name)
        yield name.encode()
        if _is_comparable(value):
            yield from nested((value,))


def pieces_of_class(cls: type, nested: Nested) -> Iterator[Any]:
    """Yield bytes that represent a class: its name, and the code that the user wrote."""
    for one in cls.__mro__:
        yield f"{one.__module__}.{one.__qualname__}".encode()
        if not is_users_class(one):
            continue
        for name, value in sorted(vars(one).items()):
            code = getattr(value, "__func__", getattr(value, "fget", value))
            special = name.startswith("__") and not isinstance(code, types.FunctionType)
            if not special and _is_comparable(code):
                yield name.encode()
                yield from nested((code,))


def is_users_class(cls: type) -> bool:
    """Return True unless a class belongs to Python, to an installed library, or to this one."""
    if cls.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and not _is_installed(file)


def _globals_of(code: types.CodeType) -> set[str]:
    """Return the names of the global values that a function and those inside it read."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return names.union(*map(_globals_of, inner))


def _is_comparable(value: Any, depth: int = 4) -> bool:
    """Return True for values whose content is the same in another process.

    A logger or a lock, for example, is not.
    """
    if isinstance(value, (list, tuple, AbstractSet)):
        return depth > 0 and all(_is_comparable(part, depth - 1) for part in value)
    if isinstance(value, Mapping):
        return depth > 0 and all(_is_comparable(part, depth - 1) for part in value.values())
    kinds = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
    return isinstance(value, (*kinds, types.FunctionType, functools.partial, type))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 — raises if the cell is empty
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    own = str(Path(__file__).parents[1])  # may be installed in place
    return (*site.getsitepackages(), sysconfig.get_path("stdlib"), sys.prefix + "/lib", own)


def _is_installed(filename: str) -> bool:
    return filename.startswith(_library_folders())
