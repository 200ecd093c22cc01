"""Everything public, one line per name, with its signature; written to ``public_api.txt``.

``python -m tests.public_api`` writes the file anew, after a change that is meant. The test beside
it fails while the file and the code differ, so that nothing public changes by accident.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerando
from accelerando.cli import build_parser

FILE = Path(__file__).with_suffix(".txt")
# The estimators are public as names of `accelerando`; users do not import from the commands.
INSIDE = {"train", "estimators", "cli", "demo", "doctor"}
ALSO = ["accelerando.crowd.client", "accelerando.monitor.export"]


def modules() -> list[str]:
    """Return the modules that users import from; a new one is public unless it is named above."""
    parts = [part.name for part in pkgutil.iter_modules(accelerando.__path__)]
    public = [name for name in parts if not name.startswith("_") and name not in INSIDE]
    return ["accelerando", *sorted([f"accelerando.{name}" for name in public] + ALSO)]


def names(module: Any) -> list[str]:
    """Return what a module offers: ``__all__``, or the names that are no modules."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("accelerando")
    )


def lines() -> Iterator[str]:
    """Yield the public interface, line by line."""
    for path in modules():
        module = importlib.import_module(path)
        for name in names(module):
            yield from _thing(f"{path}.{name}", getattr(module, name))
    yield from _commands("accelerando", build_parser())


def _thing(path: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
        yield f"class {path}{_signature(thing)}" + (f" <- {bases}" if bases else "")
        yield from _members(path, thing)
    elif callable(thing):
        yield f"def {path}{_signature(thing)}"
    else:
        yield f"data {path}: {type(thing).__name__}"


def _members(path: str, kind: type) -> Iterator[str]:
    """Yield what the class has from us; what it inherits from elsewhere is not ours to keep."""
    ours: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("accelerando"):
            ours |= {name: value for name, value in vars(base).items() if name[0] != "_"}
    for name, member in sorted(ours.items()):
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(function):
            yield f"  def {path}.{name}{_signature(function)}"
        else:
            yield f"  data {path}.{name}"


def _signature(thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return "(...)"  # the interpreter's own, and told in other words by each version of it
    signature = inspect.signature(thing)
    # Annotations may be reworded without anybody noticing; names, kinds and defaults may not.
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class _Shown:
    """A default value as a stable text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    if inspect.isclass(value) or inspect.isroutine(value):
        return _Shown(value.__qualname__)
    text = repr(value)
    return _Shown(f"<{type(value).__name__}>" if " at 0x" in text else text)


def _commands(path: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in sorted(action.choices.items()):
                yield from _commands(f"{path} {name}", child)
        elif not isinstance(action, argparse._HelpAction):
            shown = "/".join(action.option_strings) or f"<{action.dest}>"
            value = "" if action.nargs == 0 else f" ({action.default!r})"
            yield f"command {path} {shown}{value}"


def text() -> str:
    """Return the content of the file."""
    return "".join(f"{line}\n" for line in lines())


if __name__ == "__main__":
    FILE.write_text(text())
    print(f"Written: {FILE.relative_to(Path.cwd())}. Its changes belong into CHANGELOG.md, too.")
