"""YAML with line numbers, restricted to plain values.

Tags that construct objects, duplicate keys, and aliases that expand without bound are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from accelerando.crowd.experiment.problems import SettingsProblem

__all__ = ["Document", "read_yaml"]

Path = tuple[str | int, ...]

MAX_BYTES = 2_000_000
_MAX_NODES = 100_000
_MAX_DEPTH = 40


@dataclass
class Document:
    """A YAML file as plain values.

    Attributes
    ----------
    file : str
    value : object
        Dicts, lists, str, int, float, bool, None.
    places : dict of path to (line, column)
        Position of each value, counted from 1.
    raw : dict of path to str
        The characters of each scalar: an item called ``no`` is a text, not False.
    problems : list of SettingsProblem
    """

    file: str
    value: Any = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    raw: dict[Path, str] = field(default_factory=dict)
    problems: list[SettingsProblem] = field(default_factory=list)

    def problem(self, path: Path, message: str, remedy: str = "") -> None:
        """Add a problem at the value with this path, or at its nearest known parent."""
        line, column = self.place(path)
        key = ".".join(str(part) for part in path)
        self.problems.append(SettingsProblem(message, remedy, self.file, line, column, key))

    def place(self, path: Path) -> tuple[int | None, int | None]:
        """Return line and column of the value with this path, or of its nearest parent."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return None, None


def read_yaml(text: str | bytes, file: str = "experiment.yaml") -> Document:
    r"""Parse YAML; problems are collected in the document and not raised.

    Examples
    --------
    >>> document = read_yaml("a: 1\nb: [no, 2]\na: 3")
    >>> document.value, document.raw["b", 0]
    ({'a': 1, 'b': [False, 2]}, 'no')
    >>> print(document.problems[0])
    experiment.yaml:3: a: the key 'a' is there twice. Remove one of them.
    """
    document = Document(file)
    if len(text) > MAX_BYTES:
        document.problems.append(
            SettingsProblem(
                f"the file has {len(text):,} bytes.",
                f"At most {MAX_BYTES:,} are read; put long lists of items into a CSV file.",
                file,
            )
        )
        return document
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        # The loader in Python, because deep nesting crashes the one in C.
        node = yaml.compose(decoded, Loader=yaml.SafeLoader)
        if node is not None:
            document.value = _Walk(document).build(node, ())
    except UnicodeDecodeError as error:
        document.problems.append(
            SettingsProblem(f"byte {error.start} is not UTF-8.", "Save the file in UTF-8.", file)
        )
    except RecursionError:
        document.problems.append(
            SettingsProblem("the file is nested too deeply.", "Use fewer levels.", file)
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.problems.append(
            SettingsProblem(
                f"this is not YAML: {error.problem or error.context}.",
                "Look for a missing quote, colon or bracket, or a wrong indentation, on this line "
                "or the one before.",
                file,
                None if mark is None else mark.line + 1,
                None if mark is None else mark.column + 1,
            )
        )
    except yaml.YAMLError as error:
        document.problems.append(
            SettingsProblem(f"this is not YAML: {error}.", "Save it as plain text.", file)
        )
    return document


class _Walk:
    """Convert YAML nodes to values, with a limit on their number."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.left = _MAX_NODES
        self.constructor = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: Path) -> Any:
        document = self.document
        document.places[path] = node.start_mark.line + 1, node.start_mark.column + 1
        self.left -= 1
        if self.left == 0:
            document.problem((), "the file has too many values.", "Are there aliases of aliases?")
        if self.left <= 0:
            return None
        if len(path) > _MAX_DEPTH:
            raise RecursionError
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, k)) for k, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, child in node.value:
            if self.left <= 0:
                break
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.problem(path, "a key must be a word.", "Put it in quotes.")
                continue
            key = _joined(key_node.value)
            inner = (*path, key)
            if key in values:
                self.document.places[inner] = (
                    key_node.start_mark.line + 1,
                    key_node.start_mark.column + 1,
                )
                self.document.problem(
                    inner, f"the key {key!r} is there twice.", "Remove one of them."
                )
                continue
            values[key] = self.build(child, inner)
            self.document.places[inner] = (
                key_node.start_mark.line + 1,
                key_node.start_mark.column + 1,
            )
        return values

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        self.document.raw[path] = _joined(node.value)
        kind = node.tag.rpartition(":")[2]
        if not node.tag.startswith("tag:yaml.org,2002:") or kind not in _SCALARS:
            self.document.problem(
                path, f"the tag {node.tag!r} is not allowed.", "Write a plain value."
            )
            return None
        if kind in ("str", "timestamp", "binary", "merge", "value"):
            return _joined(node.value)
        try:
            return self.constructor.construct_object(node, deep=True)
        except (ValueError, yaml.YAMLError, OverflowError):
            return _joined(node.value)


def _joined(text: str) -> str:
    """Join surrogate pairs, as in JSON, and replace lone surrogates, which cannot be stored."""
    return str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_SCALARS = {"str", "int", "float", "bool", "null", "timestamp", "binary", "merge", "value"}
