"""Data of a search: one validation split for all models, and one training chunk per call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import dask
import numpy as np
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit
from sklearn.utils import indexable

from accelerando._sklearn import count_rows, is_arraylike, take_rows
from accelerando.search._limits import compute, no_limit, results_of
from accelerando.search._roster import fit_workers
from accelerando.search._sizes import nbytes

__all__ = ["Chunk", "ChunkGroup", "Data", "chunk_of_call", "split", "without_empty_groups"]


class Chunk(NamedTuple):
    """Rows for one call: features, targets, and fit parameters that have a value per row."""

    X: Any
    y: Any
    params: dict[str, Any]


class ChunkGroup:
    """Chunks that are sent to a worker as a unit."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks

    def __sizeof__(self) -> int:
        # Dask moves and spills results by size, and cannot measure a class that it does not know.
        return 64 + sum(nbytes(part) for chunk in self.chunks for part in (chunk.X, chunk.y))


@dataclass
class Data:
    """Training chunks in groups, the location of each chunk, and the validation rows.

    ``groups`` and ``validation`` are delayed objects of Dask if ``lazy`` is True.
    """

    groups: list[Any]
    locations: list[tuple[int, int]]  # chunk -> (group, position in the group)
    validation: Any
    lazy: bool = False
    group_bytes: list[int] | None = None  # size of each group, if it is known
    held: Any = None  # results on the cluster that are still needed


def split(
    X: Any,
    y: Any,
    *,
    test_size: float | int | None,
    chunk_size: int | None,
    seed: int,
    groups: Any = None,
    fit_params: dict[str, Any],
    validation: Any = None,
    check: Callable[[], None] = no_limit,
) -> tuple[Data, dict[str, Any]]:
    """Split rows into training chunks and validation rows.

    Parameters
    ----------
    X, y : array-like or Dask collection
        The data.
    test_size : float, int or None
        Share or number of validation rows.
    chunk_size : int or None
        Rows per chunk, for data in memory.
    seed : int
        Decides which rows are held out.
    groups : array-like, optional
        Rows with the same label are on the same side of the split.
    fit_params : dict
        Parameters of ``partial_fit``. Those with a value per row are split with the rows.
    validation : tuple (X, y), optional
        The validation rows; then all rows are trained on.
    check : callable
        Raises if the search must end while a cluster computes the validation rows.

    Returns
    -------
    data : Data
    constant : dict
        The fit parameters that do not have a value per row.
    """
    if groups is not None and validation is not None:
        raise ValueError(
            "groups decides which rows are held out; with validation_data none are. Pass only one."
        )
    if dask.is_dask_collection(X):
        if groups is not None:
            raise ValueError(
                "groups is supported for data in memory only, but X is a Dask collection. Put the "
                "rows of a group into one block, or pass NumPy arrays."
            )
        if chunk_size is not None:
            raise ValueError(
                f"chunk_size={chunk_size!r} is for data in memory, but X is a Dask collection, "
                "whose blocks are its chunks. Call X.rechunk instead."
            )
        return _split_blocks(X, y, test_size, seed, fit_params, validation)
    if validation is not None:
        validation = compute(*validation, check=check)
    return _split_rows(
        X, y, groups, test_size=test_size, chunk_size=chunk_size, seed=seed, fit_params=fit_params,
        validation=validation,
    )  # fmt: skip


def chunk_of_call(call: int, n_chunks: int, seed: int) -> int:
    """Return the index of the chunk for call number `call`, counted from 0.

    It is the same for all models. Each pass uses every chunk once, in a new order that depends on
    the seed only.
    """
    return int(_pass_order(n_chunks, seed, call // n_chunks)[call % n_chunks])


@lru_cache(maxsize=256)
def _pass_order(n_chunks: int, seed: int, number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, number]).permutation(n_chunks)


def _split_rows(
    X: Any,
    y: Any,
    groups: Any,
    *,
    test_size: float | int | None,
    chunk_size: int | None,
    seed: int,
    fit_params: dict[str, Any],
    validation: Any = None,
) -> tuple[Data, dict[str, Any]]:
    X, y, groups = indexable(X, y, groups)
    n_rows = count_rows(X)
    per_row, constant = _per_row(fit_params, n_rows)
    splitter = ShuffleSplit if groups is None else GroupShuffleSplit
    size = 0.2 if test_size is None else test_size
    if validation is None:
        train, test = next(splitter(1, test_size=size, random_state=seed).split(X, y, groups))
        held_out = _rows(X, y, per_row, test)
    else:
        train = np.random.default_rng(seed).permutation(n_rows)
        given_X, given_y = indexable(*validation)
        held_out = Chunk(given_X, given_y, {})
    indices = divide(train, chunk_size)
    group = ChunkGroup([_rows(X, y, per_row, index) for index in indices])
    return Data([group], [(0, i) for i in range(len(indices))], held_out), constant


def divide(train: Any, chunk_size: int | None, n_chunks: int | None = None) -> list[Any]:
    """Divide rows into chunks of about `chunk_size` rows, or into `n_chunks` chunks."""
    if chunk_size is None:
        return [train]
    if chunk_size > len(train):
        return [np.resize(train, chunk_size)]  # rows are repeated, §2.4.2
    return list(np.array_split(train, n_chunks or -(-len(train) // chunk_size)))


def rows_of(X: Any, y: Any, fit_params: dict[str, Any]) -> tuple[Chunk, dict[str, Any]]:
    """Return all rows, and the fit parameters that do not have a value per row."""
    X, y = indexable(X, y)
    per_row, constant = _per_row(fit_params, count_rows(X))
    return Chunk(X, y, per_row), constant


def take_chunk(rows: Chunk, index: Any) -> Chunk:
    """Return some rows of a chunk."""
    return _rows(rows.X, rows.y, rows.params, index)


def _rows(X: Any, y: Any, per_row: dict[str, Any], index: Any) -> Chunk:
    return Chunk(
        take_rows(X, index),
        None if y is None else take_rows(y, index),
        {name: take_rows(value, index) for name, value in per_row.items()},
    )


def _split_blocks(
    X: Any,
    y: Any,
    test_size: float | int | None,
    seed: int,
    fit_params: dict[str, Any],
    given: Any = None,
) -> tuple[Data, dict[str, Any]]:
    X = _one_block_per_row(X)
    n_blocks = int(X.npartitions)
    aligned: dict[str, Any] = {}
    constant: dict[str, Any] = {}
    for name, value in fit_params.items():
        (aligned if dask.is_dask_collection(value) else constant)[name] = value
    if _known_lengths(X):
        per_row, constant = _per_row(constant, sum(X.chunks[0]))
        aligned.update(per_row)
    elif "sample_weight" in constant:
        aligned["sample_weight"] = constant.pop("sample_weight")  # refused by _blocks
    share = 0.0 if given is not None else _validation_share(X, test_size)
    columns = [_blocks(value, X, name) for name, value in aligned.items()]
    xs = _blocks(X, X, "X")
    ys = [None] * n_blocks if y is None else _blocks(y, X, "y")
    sizes = _block_bytes(X)
    if sizes is not None and 0 in sizes:  # an empty block has nothing to train on
        kept = _not_empty(sizes)
        xs, ys, *columns = ([column[i] for i in kept] for column in (xs, ys, *columns))
        sizes, n_blocks = [sizes[i] for i in kept], len(kept)
    cut = dask.delayed(_cut_block, pure=False, nout=2)
    pairs = [
        cut(x, y_, dict(zip(aligned, values, strict=True)), share, [seed, i])
        for i, (x, y_, *values) in enumerate(zip(xs, ys, *columns, strict=True))
    ]
    groups = [pair[0] for pair in pairs]
    if given is None:
        validation = dask.delayed(_join, pure=False)([pair[1] for pair in pairs])
    else:
        validation = dask.delayed(Chunk, pure=False)(given[0], given[1], {})
    locations = [(i, 0) for i in range(n_blocks)]
    return Data(groups, locations, validation, lazy=True, group_bytes=sizes), constant


def without_empty_groups(data: Data, client: Any, check: Callable[[], None] = no_limit) -> Data:
    """Return lazy data without empty blocks; blocks of unknown length are computed for this.

    Parameters
    ----------
    data : Data
        The data.
    client : Client or None
        The cluster that keeps the blocks. None computes them in this process.
    check : callable
        Raises if the search must end while the blocks are computed.
    """
    if not data.lazy or data.group_bytes is not None:
        return data
    if client is None:
        *groups, validation = compute(*data.groups, data.validation, check=check)
        groups = [groups[i] for i in _not_empty(map(rows_in, groups))]
        return Data(groups, [(i, 0) for i in range(len(groups))], validation)
    where = fit_workers(client, check)
    held = client.compute(data.groups, **where)
    counted = results_of(client.map(rows_and_bytes, held, pure=False, **where), client, check)
    kept = _not_empty(rows for rows, _ in counted)
    return Data(
        [data.groups[i] for i in kept],
        [(i, 0) for i in range(len(kept))],
        data.validation,
        lazy=True,
        group_bytes=[counted[i][1] for i in kept],
        held=[held[i] for i in kept],
    )


def _not_empty(counts: Iterable[int]) -> list[int]:
    kept = [i for i, count in enumerate(counts) if count]
    if not kept:
        raise ValueError("X must have rows. All of its blocks are empty.")
    return kept


def rows_in(group: ChunkGroup) -> int:
    """Return the number of rows of a group."""
    return sum(count_rows(chunk.X) for chunk in group.chunks)


def rows_and_bytes(group: ChunkGroup) -> tuple[int, int]:
    """Return the number of rows and the size of a group."""
    return rows_in(group), group.__sizeof__()


def _block_bytes(X: Any) -> list[int] | None:
    if not _known_lengths(X):
        return None
    row = int(np.prod(X.shape[1:])) * X.dtype.itemsize
    return [int(length) * row for length in X.chunks[0]]


def _known_lengths(X: Any) -> bool:
    return hasattr(X, "chunks") and not np.isnan(sum(X.chunks[0]))


def _validation_share(X: Any, test_size: float | int | None) -> float:
    """Return the share of each block's rows that are held out."""
    if test_size is None:
        return min(0.2, 1 / int(X.npartitions))
    share = test_size
    if isinstance(test_size, int):
        if not _known_lengths(X):
            raise ValueError(
                f"test_size={test_size} counts rows, but the blocks of X have unknown lengths. "
                "Pass a fraction, or (for a Dask array) call X.compute_chunk_sizes() first."
            )
        share = test_size / sum(X.chunks[0])
    if not 0 < share < 1:
        raise ValueError(
            "test_size must leave rows for training and for validation. "
            f"Got test_size={test_size!r}, which is {share:.3g} of the rows."
        )
    return share


def _per_row(fit_params: dict[str, Any], n_rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    per_row: dict[str, Any] = {}
    constant: dict[str, Any] = {}
    for name, value in fit_params.items():
        rows = count_rows(value) if name != "classes" and is_arraylike(value) else None
        if name == "sample_weight" and rows not in (None, n_rows):
            raise ValueError(
                f"sample_weight must have a value per row of X, which has {n_rows}. Got {rows}."
            )
        aligned = rows == n_rows
        (per_row if aligned else constant)[name] = value
    return per_row, constant


def _one_block_per_row(X: Any) -> Any:
    if hasattr(X, "numblocks") and X.ndim > 1:
        return X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    return X


def _blocks(value: Any, like: Any, name: str) -> list[Any]:
    """Return the blocks of `value` as delayed objects, one per block of `like`."""
    import dask.array as da

    if not dask.is_dask_collection(value):
        if not _known_lengths(like):
            raise ValueError(
                f"{name} must be a Dask collection with the blocks of X, because the blocks of X "
                f"have unknown lengths. Got {type(value).__name__} instead."
            )
        value = np.asarray(value)
        if np.shape(value)[:1] != (sum(like.chunks[0]),):
            found = f"the shape {np.shape(value)} and X has {sum(like.chunks[0])} rows"
            raise _other_lengths(name, found)
        value = da.from_array(value, chunks=(like.chunks[0], *([-1] * (value.ndim - 1))))
    value = _one_block_per_row(value)
    if hasattr(value, "chunks") and hasattr(like, "chunks"):
        here, there = value.chunks[0], like.chunks[0]
        if here != there and not np.isnan(sum(here) + sum(there)):
            if sum(here) == sum(there):
                value = value.rechunk({0: there})
            elif len(here) == len(there):
                raise _other_lengths(name, f"{sum(here)} rows and X has {sum(there)}")
    if value.npartitions != like.npartitions:
        raise ValueError(
            f"{name} has {value.npartitions} blocks but X has {like.npartitions}. Rechunk {name} "
            "so that its blocks have the lengths of the blocks of X."
        )
    return list(np.ravel(np.asarray(value.to_delayed(), dtype=object)))


def _other_lengths(name: str, found: str) -> ValueError:
    return ValueError(
        f"{name} must have a row for each row of X, in blocks of the same lengths. Got {found}."
    )


def _cut_block(
    X: Any, y: Any, params: dict[str, Any], share: float, seed: list[int]
) -> tuple[ChunkGroup, Chunk]:
    n_rows = count_rows(X)
    for name, value in {"y": y, **params}.items():
        if value is not None and (found := count_rows(value)) != n_rows:
            raise _other_lengths(name, f"{found} rows where a block of X has {n_rows}")
    order = np.random.default_rng(seed).permutation(n_rows)
    n_test = min(max(1, round(share * len(order))), max(0, len(order) - 1)) if share else 0
    train, test = np.sort(order[n_test:]), np.sort(order[:n_test])
    return ChunkGroup([_rows(X, y, params, train)]), _rows(X, y, params, test)


def _join(chunks: list[Chunk]) -> Chunk:
    chunks = [chunk for chunk in chunks if count_rows(chunk.X)] or chunks[:1]
    first = chunks[0]
    y = None if first.y is None else _stack([chunk.y for chunk in chunks])
    return Chunk(_stack([chunk.X for chunk in chunks]), y, {})


def _stack(parts: list[Any]) -> Any:
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts)
    if hasattr(parts[0], "tocsr"):
        import scipy.sparse

        return scipy.sparse.vstack(parts, format="csr")
    return np.concatenate(parts)
