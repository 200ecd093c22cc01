"""Extras: the optional parts of accelerando, and the packages that each of them needs.

A part checks its packages when it is imported, so that a missing one is reported with the command
that installs it and not with the name of a package that the user never asked for.
"""

from __future__ import annotations

import importlib.util

from accelerando.exceptions import AccelerandoError

_TRAINING = (
    *("torch", "skorch", "dask", "distributed", "pandas"),
    *("cloudpickle", "fsspec", "tabulate", "rich"),
)

# The names under which the packages of each extra in pyproject.toml are imported. Packages that the
# service can do without (uvloop, httptools, psycopg, pillow_heif) are not listed.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": _TRAINING,
    "search": _TRAINING,
    "crowd": (
        *("fastapi", "uvicorn", "jinja2", "python_multipart", "sqlalchemy"),
        *("argon2", "yaml", "nh3", "PIL"),
    ),
    "plot": ("matplotlib", "pandas"),
    "tpe": ("optuna",),
    "fast": ("numba",),
    "parquet": ("pyarrow",),
}


class MissingExtraError(AccelerandoError, ModuleNotFoundError):
    """Packages of an extra are not installed; the message names the command that installs them."""


def require(extra: str, what: str, *packages: str) -> None:
    """Raise an error that names the extra if one of its packages is not installed.

    Parameters
    ----------
    extra : str
        Key of :data:`EXTRAS`.
    what : str
        What needs the packages, as the subject of the message.
    *packages : str
        The packages to look for; by default all of the extra.

    Examples
    --------
    >>> require("train", "accelerando.search")
    """
    missing = [name for name in packages or EXTRAS[extra] if not _is_installed(name)]
    if missing:
        raise MissingExtraError(
            f"{what} needs {_listed(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed. Install the extra '{extra}': pip install 'accelerando[{extra}]'",
            name=missing[0],
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # it is blocked, or a test put something in its place
        return False


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])
