"""X as users have it, converted once into what the module computes with."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import validate_data
from torch import nn
from torch.utils.data import Dataset

from accelerando._engine.data.feed import leaves, map_leaves
from accelerando.estimators._probe import (
    PROBED_ROWS,
    change,
    decide_criterion,
    head,
    is_lazy,
    probe,
    reads_itself,
    refuse_lazy,
    refuse_stream,
    undecided,
)
from accelerando.estimators._skorch import has_custom_loss
from accelerando.exceptions import UnsupportedError

LARGEST_COPY = 2**28  # numbers of a memory-mapped array that are converted in memory


# -- a fit ----------------------------------------------------------------------------------------


def convert(
    net: Any, X: Any, y: Any, fit_params: Mapping[str, Any], *, early: bool
) -> tuple[Any, Any]:
    """Return the `X` and `y` that are trained on; decide the criterion if it is ``"auto"``.

    Parameters
    ----------
    net : estimator
        Initialized.
    X, y : object
        What :func:`as_arrays` returned.
    fit_params : mapping
        Further arguments of the module's ``forward``.
    early : bool
        Whether ``criterion="auto"`` decides now; otherwise it looks at the first batch.
    """
    from accelerando.estimators._targets import convert_y, wants_outputs

    if any(parameter.is_complex() for _, parameter in net.get_all_learnable_params()):
        raise UnsupportedError(
            "The module has complex parameters, and accelerando records and exchanges real "
            "gradients. Keep real and imaginary parts as two parameters."
        )
    if hasattr(X, "lengths"):
        return _convert_chunks(net, X, fit_params, early=early), y
    is_dataset = isinstance(X, Dataset) or reads_itself(net)
    outputs = None
    if not is_dataset:
        X = _record_features(net, X)
        X, outputs = _to_dtypes(net, X, y, fit_params)
    asks = is_lazy(net) or (early and undecided(net)) or (not is_dataset and wants_outputs(net, y))
    if outputs is None and asks:
        outputs = probe(net, X, y, fit_params)
    if is_lazy(net):
        refuse_lazy(X, outputs)
    if early or isinstance(outputs, torch.Tensor):
        decide_criterion(net, outputs)
        refuse_stream(net, X)
    if is_dataset:
        return X, y
    return X, convert_y(net, y, outputs if isinstance(outputs, torch.Tensor) else None)


def _convert_chunks(net: Any, chunks: Any, fit_params: Mapping[str, Any], *, early: bool) -> Any:
    """Return chunks of a Dask array with the types and shapes that their first rows get."""
    from accelerando.estimators._data import converted_chunks, first_rows

    if not len(chunks):
        return chunks
    X, y = first_rows(net.client, chunks, PROBED_ROWS)
    found = convert(net, X, y, fit_params, early=early)
    if net._recipe_.labels is not None:
        raise UnsupportedError(
            f"The classes in y are not the numbers of outputs (y begins with {y[:3].tolist()}), "
            'and data="shard" leaves y where it is. Pass y as 0, 1, 2, …: '
            "y.map_blocks(lambda labels: np.searchsorted(classes, labels))."
        )
    return converted_chunks(net.client, chunks, (X, y), found)


def as_arrays(net: Any, X: Any, y: Any) -> tuple[Any, Any]:
    """Turn lists into arrays, and frames into matrices; refuse what cannot be trained on."""
    from accelerando.estimators._explain import look_at_inputs

    if isinstance(X, Dataset) or reads_itself(net):
        return X, look_at_inputs(net, X, y)
    X = _as_array(X)
    y = y.to_numpy() if hasattr(y, "to_numpy") else _as_array(y)  # of a frame, a series
    X = _numbers(net, X)
    return X, look_at_inputs(net, X, y)


def stacked(X: Any, y: Any) -> tuple[Any, Any]:
    """Return lists of rows, and of single targets, as arrays; several inputs as they are.

    Parameters
    ----------
    X, y : object
        What was passed. A list of as many arrays as there are targets holds rows, unless each of
        them has as many rows.
    """
    if isinstance(y, list | tuple) and y and all(_shape_of(one) == () for one in y):
        y = _stack(y)
    if not isinstance(X, list | tuple) or not X:
        return X, y
    if all(isinstance(one, list | tuple) and any(map(_shape_of, one)) for one in X):
        raise ValueError(
            f"X is a {type(X).__name__} of tuples of arrays. For several inputs of forward pass a "
            "dictionary of arrays. scikit-learn makes such a list of a Dataset: wrap it in "
            "skorch.helper.SliceDataset."
        )
    if any(_shape_of(one) is None for one in X):
        return X, y
    rows = len(y) if hasattr(y, "__len__") else None
    if len(X) == rows and _shape_of(X[0])[:1] != (rows,) and len(set(map(_shape_of, X))) == 1:
        return _stack(X), y
    flat = [number for number, one in enumerate(X) if len(_shape_of(one)) == 1]
    if flat:
        raise ValueError(
            f"X is a {type(X).__name__} of {len(X)} arrays, which are several inputs of forward, "
            f"and number {flat[0]} has one dimension. For rows pass np.stack(X); for several "
            "inputs, a dictionary or columns (array.reshape(-1, 1))."
        )
    return X, y


def _shape_of(item: Any) -> Any:
    """Return the shape of an array, a tensor or a NumPy scalar; None for anything else."""
    is_array = isinstance(item, np.ndarray | np.generic | torch.Tensor)
    return tuple(item.shape) if is_array else None


def _are_rows(X: Any, n_features: int | None) -> bool:
    """Return True for a list of rows with as many features as those of the fit."""
    return n_features is not None and all(_shape_of(one) == (n_features,) for one in X)


def _stack(items: Any) -> Any:
    if isinstance(items[0], torch.Tensor):
        return torch.stack(list(items))
    return np.stack([np.asarray(item) for item in items])


def _as_array(data: Any) -> Any:
    """Return lists of numbers, and what NumPy knows to convert, as an array; rows if sparse."""
    if sparse.issparse(data):
        return data.tocsr()  # itself if it is one
    foreign = hasattr(data, "__array__") and not hasattr(data, "__getitem__")
    return np.asarray(data) if foreign or _is_table(data) else data


def _check_features(X: Any) -> None:
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 2 and shape[1] == 0:
        raise ValueError(
            f"X has 0 feature(s) (shape={tuple(shape)}) while a minimum of 1 is required."
        )


def _numbers(net: Any, X: Any) -> Any:
    """Return an array of Python objects as numbers, if they are."""
    if isinstance(X, np.ndarray) and X.dtype == object and not has_custom_loss(net):
        try:
            return X.astype(np.float64)
        except ValueError:
            return X  # refused by look_at_inputs
        except TypeError as error:
            raise TypeError(
                f"X has the type object, and a module computes with numbers: {error}. Convert it, "
                "or pass a dictionary of arrays."
            ) from None
    return X


def _check_rows(net: Any, X: Any) -> None:
    """Refuse other features than those of the fit, and one row that is no matrix."""
    shape = getattr(X, "shape", ())
    if len(shape) == 1 and not hasattr(X, "columns"):
        raise ValueError(
            f"Expected 2D array, got 1D array instead: X has shape {tuple(shape)}, and was fitted "
            f"with {net.n_features_in_} features per row. Reshape your data: X.reshape(1, -1) is "
            "one row, X.reshape(-1, 1) has one feature."
        )
    if len(shape) == 2:
        validate_data(net, X, reset=False, skip_check_array=True)


def _is_table(data: Any) -> bool:
    """Return True for a list of numbers, strings or equally long lists of them."""
    if not isinstance(data, list | tuple):
        return False
    if all(isinstance(item, numbers.Number | str | np.generic) for item in data):
        return True
    if not all(isinstance(item, list | tuple) for item in data):
        return False
    return len({len(item) for item in data}) == 1 and all(_is_table(item) for item in data)


def _record_features(net: Any, X: Any) -> Any:
    """Set or check ``n_features_in_`` and ``feature_names_in_``; make a frame a matrix."""
    _check_features(X)
    if len(getattr(X, "shape", ())) == 2:
        reset = not hasattr(net, "n_features_in_")
        validate_data(net, X, reset=reset, skip_check_array=True)
    if not _is_frame(X):
        return X
    if net._recipe_.matrix is None:
        change(net, matrix=not takes_columns(net, X))
    return as_matrix(X) if net._recipe_.matrix else X


def _is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "to_numpy")


def takes_columns(net: Any, X: Any) -> bool:
    """Return True if ``forward`` has an argument for each column of a frame."""
    module = getattr(net, "module_", None)
    if not isinstance(module, nn.Module):
        return True
    known = inspect.signature(module.forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return True
    return all(isinstance(name, str) and name in known for name in X.columns)


def as_matrix(X: Any) -> Any:
    """Return a frame as one array of numbers."""
    matrix = X.to_numpy()
    if matrix.dtype.kind not in "OUSMm":
        return matrix
    try:
        if any(kind.kind in "Mm" for kind in X.dtypes):  # which are numbers for pandas
            raise TypeError
        return X.to_numpy(dtype="float64", na_value=np.nan)
    except (TypeError, ValueError):
        names = [str(n) for n, kind in X.dtypes.items() if kind.kind not in "biufc"]
        raise ValueError(
            f"The columns {', '.join(names)} of X hold no numbers, and a module computes with "
            "numbers. Encode them, with scikit-learn's OneHotEncoder for example, or let the "
            "module's forward have an argument for each column."
        ) from None


# -- dtypes ---------------------------------------------------------------------------------------


def module_dtype(net: Any) -> torch.dtype | None:
    """Return the dtype of the module's first floating parameter."""
    found = (p.dtype for _, p in net.get_all_learnable_params() if p.is_floating_point())
    return next(found, None)


def _to_dtypes(net: Any, X: Any, y: Any, fit_params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return `X` in the dtypes that the module computes with, and outputs if it was asked."""
    wanted = module_dtype(net)
    known = net._recipe_.dtypes
    parts = leaves(X) if not _is_frame(X) else []
    kinds = [dtype_of(leaf) for leaf in parts]
    if wanted is None or not parts or any(kind is None for kind in kinds):
        return X, None
    if len(known) == len(kinds):
        return _cast(X, known), None
    _refuse_complex(kinds, wanted)
    floats = tuple(wanted if kind.is_floating_point else kind for kind in kinds if kind)
    X = _cast(X, floats)
    if all(kind.is_floating_point or kind.is_complex for kind in floats):
        change(net, dtypes=floats)
        return X, None
    integers = tuple(torch.int64 if _is_integer(kind) else kind for kind in floats)
    numbers_ = tuple(wanted if _is_integer(kind) else kind for kind in floats)
    for dtypes in (floats, integers, numbers_):
        candidate = _cast(head(X), dtypes)
        outputs = probe(net, candidate, head(y), fit_params)
        if not isinstance(outputs, Exception):
            change(net, dtypes=dtypes)
            return _cast(X, dtypes), outputs
    return X, None  # the first update says what is wrong


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _refuse_complex(kinds: Sequence[Any], wanted: torch.dtype) -> None:
    if any(kind.is_complex for kind in kinds) and not wanted.is_complex:
        raise ValueError(
            "Complex data not supported: X holds complex numbers, and the module's parameters are "
            f"{str(wanted).removeprefix('torch.')}. Pass real and imaginary parts as features."
        )


def dtype_of(leaf: Any) -> torch.dtype | None:
    """Return the dtype of an array as PyTorch's; None for what is no array of numbers."""
    dtype = getattr(leaf, "dtype", None)
    if isinstance(dtype, torch.dtype):
        return dtype
    if not (isinstance(leaf, np.ndarray) or sparse.issparse(leaf)):
        return None
    native = leaf.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.empty(0, native)).dtype
    except TypeError:
        return None


def _cast(X: Any, dtypes: Sequence[torch.dtype]) -> Any:
    left = iter(dtypes)
    return map_leaves(lambda leaf: cast(leaf, next(left)), X)


def cast(leaf: Any, wanted: torch.dtype) -> Any:
    """Return an array with another dtype; the array itself if it has it already.

    Integers are never made of floating numbers: what lies behind the point would be lost.
    """
    dtype = dtype_of(leaf)
    if dtype is None or dtype == wanted or (_is_integer(wanted) and not _is_integer(dtype)):
        return leaf
    if isinstance(leaf, torch.Tensor):
        return leaf.to(wanted)
    if isinstance(leaf, np.memmap) and leaf.size > LARGEST_COPY:
        raise ValueError(
            f"X is mapped into memory as {leaf.dtype}, and the module computes with "
            f"{str(wanted).removeprefix('torch.')}: converting it would read all of it. Write the "
            "file with this type, or pass a Dataset that converts its items."
        )
    try:
        name = torch.empty(0, dtype=wanted).numpy().dtype
    except TypeError:  # bfloat16, which NumPy does not have
        return torch.from_numpy(leaf.toarray() if sparse.issparse(leaf) else leaf).to(wanted)
    return leaf.astype(name)


def decide_for_prediction(net: Any, X: Any) -> None:
    """Decide the criterion of a net that was not fitted, such as one with loaded parameters."""
    if undecided(net) and not hasattr(X, "__dask_graph__"):
        X = converted(net, X)
        decide_criterion(net, probe(net, X, None, {}))


# -- predictions ----------------------------------------------------------------------------------


def converted(net: Any, X: Any) -> Any:
    """Return the `X` of a prediction as the module computes with it."""
    if isinstance(X, Dataset) or hasattr(X, "__dask_graph__") or reads_itself(net):
        return X
    X = _as_array(X)
    if isinstance(X, list | tuple) and X and _are_rows(X, getattr(net, "n_features_in_", None)):
        X = _stack(X)
    if getattr(X, "shape", (1,))[:1] == (0,):
        raise ValueError(
            f"Found array with 0 sample(s) (shape={tuple(X.shape)}) while a minimum of 1 is "
            "required: X is empty, and there is nothing to predict."
        )
    if hasattr(net, "n_features_in_"):
        _check_rows(net, X)
    if _is_frame(X):
        matrix = net._recipe_.matrix
        if not (not takes_columns(net, X) if matrix is None else matrix):
            return X
        X = as_matrix(X)
    X = _numbers(net, X)
    parts, known = leaves(X), net._recipe_.dtypes
    if len(known) == len(parts):
        return _cast(X, known)
    wanted = module_dtype(net)
    kinds = [dtype_of(leaf) for leaf in parts]
    if wanted is None or any(kind is None for kind in kinds):
        return X
    return _cast(X, [wanted if kind.is_floating_point else kind for kind in kinds if kind])
