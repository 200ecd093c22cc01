"""Lists, frames and other containers of rows, as arrays."""

from __future__ import annotations

import inspect
import numbers
from typing import Any

import numpy as np
import torch
from scipy import sparse
from skorch.utils import is_pandas_ndframe
from torch import nn

from accelerando.estimators._skorch import has_custom_loss


def stacked(X: Any, y: Any) -> tuple[Any, Any]:
    """Return lists of rows, and of single targets, as arrays; several inputs as they are.

    Parameters
    ----------
    X, y : object
        What was passed. A list of as many arrays as there are targets holds rows, unless each of
        them has as many rows.
    """
    if isinstance(y, list | tuple) and y and all(_shape_of(one) == () for one in y):
        y = stack(y)
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
        return stack(X), y
    flat = [number for number, one in enumerate(X) if len(_shape_of(one)) == 1]
    if flat:
        raise ValueError(
            f"X is a {type(X).__name__} of {len(X)} arrays, which are several inputs of forward, "
            f"and number {flat[0]} has one dimension. For rows pass np.stack(X); for several "
            "inputs, a dictionary or columns (array.reshape(-1, 1))."
        )
    return X, y


def as_array(data: Any) -> Any:
    """Return lists of numbers, and what NumPy knows to convert, as an array; rows if sparse."""
    if sparse.issparse(data):
        return data.tocsr()  # itself if it is one
    foreign = hasattr(data, "__array__") and not hasattr(data, "__getitem__")
    return np.asarray(data) if foreign or _is_table(data) else data


def in_known_precision(data: Any) -> Any:
    """Return numbers of long double precision, which PyTorch does not have, in double precision."""
    is_long = isinstance(data, np.ndarray) and data.dtype.char in "gG"
    return data.astype(np.complex128 if data.dtype.kind == "c" else np.float64) if is_long else data


def as_numbers(net: Any, X: Any) -> Any:
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
    return in_known_precision(X)


def _is_table(data: Any) -> bool:
    """Return True for a list of numbers, strings or equally long lists of them."""
    if not isinstance(data, list | tuple):
        return False
    if all(item is None or isinstance(item, numbers.Number | str | np.generic) for item in data):
        return True
    if not all(isinstance(item, list | tuple) for item in data):
        return False
    return len({len(item) for item in data}) == 1 and all(_is_table(item) for item in data)


def are_rows(X: Any, n_features: int | None) -> bool:
    """Return True for a list of rows with as many features as those of the fit."""
    return n_features is not None and all(_shape_of(one) == (n_features,) for one in X)


def stack(items: Any) -> Any:
    if isinstance(items[0], torch.Tensor):
        return torch.stack(list(items))
    return np.stack([np.asarray(item) for item in items])


def _shape_of(item: Any) -> Any:
    """Return the shape of an array, a tensor or a NumPy scalar; None for anything else."""
    is_array = isinstance(item, np.ndarray | np.generic | torch.Tensor)
    return tuple(item.shape) if is_array else None


# -- frames ---------------------------------------------------------------------------------------


def is_frame(X: Any) -> bool:
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
    if all(map(_is_numeric, X.dtypes)) and matrix.dtype.kind in "biufc":
        return matrix
    try:
        if any(getattr(kind, "kind", "M") in "Mm" for kind in X.dtypes):
            raise TypeError  # pandas and Polars would take dates for numbers
        return X.to_numpy(dtype="float64", na_value=np.nan)
    except (TypeError, ValueError):
        kinds = zip(X.columns, X.dtypes, strict=True)
        names = [str(name) for name, kind in kinds if not _is_numeric(kind)]
        raise ValueError(
            f"The columns {', '.join(names)} of X hold no numbers, and a module computes with "
            "numbers. Encode them, with scikit-learn's OneHotEncoder for example, or let the "
            "module's forward have an argument for each column."
        ) from None


def as_columns(X: Any) -> Any:
    """Return a frame as arguments of ``forward``; skorch knows those of pandas."""
    if is_pandas_ndframe(X):
        return X
    return {name: X[name].to_numpy().reshape(-1, 1) for name in X.columns}


def _is_numeric(dtype: Any) -> bool:
    """Return True for a dtype of numbers or Booleans, of pandas or Polars."""
    kind = getattr(dtype, "kind", None)
    if kind is not None:
        return kind in "biufc"
    return bool(dtype.is_numeric()) or str(dtype) == "Boolean"


def refuse_equal_names(X: Any) -> None:
    names = [str(name) for name in X.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Several columns of X are called {', '.join(twice)}. Give each column its own name, "
            "or pass X.to_numpy()."
        )
