"""Batches are arrays, or dictionaries, lists and tuples of arrays; these act on all leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to every leaf and keep the structure."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, value) for value in tree)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """List the leaves in order."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def only_tensors(tree: Any) -> bool:
    """Tell whether every leaf is a tensor with rows."""
    return all(isinstance(leaf, torch.Tensor) and leaf.dim() > 0 for leaf in leaves(tree))


def slice_rows(tree: Any, start: int, stop: int) -> Any:
    """Return rows `start` to `stop` of every leaf, without a copy."""
    return map_leaves(lambda leaf: leaf[start:stop], tree)


def count_rows(tree: Any) -> int:
    """Return the number of rows that the leaves agree on."""
    return len(leaves(tree)[0])


def concatenate(trees: Sequence[Any]) -> Any:
    """Join trees of one structure along their rows."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: concatenate([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(concatenate(parts) for parts in zip(*trees, strict=True)))
    if isinstance(first, list | tuple):
        return type(first)(concatenate(parts) for parts in zip(*trees, strict=True))
    return torch.cat(list(trees))
