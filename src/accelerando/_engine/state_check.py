"""Check what a state file says before anything of it is used.

A file may come from somebody else, or from a disk that lies. Its tensors were read without running
anything; here every plain value is found to be of the kind that saving writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from accelerando._engine.position import EPOCH_COLUMNS, Part
from accelerando.exceptions import StateError

Check = Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_a(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _fields(required: Mapping[str, Check], **optional: Check) -> Check:
    known = {**required, **optional}

    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and set(required) <= set(value) <= set(known)
            and all(known[name](one) for name, one in value.items())
        )

    return check


_TEXT, _BOOL, _DICT = _is_a(str), _is_a(bool), _is_a(dict)
_NUMBERS = _list_of(_is_number)

_POSITION: dict[str, Check] = {
    "seed": _is_int,
    "seeded": _BOOL,
    "position": _fields(
        dict.fromkeys(("epoch", "cursor", "update", "examples", "until"), _is_count)
        | {"n_examples": _or_none(_is_count), "epoch_open": _BOOL}
    ),
    "last": lambda value: _NUMBERS(value) and len(value) == 3,
    "batch_size": _is_number,
    "lr_scale": _is_number,
    "settings": _fields(
        {},
        **dict.fromkeys(("batch_size", "base_batch_size", "momentum"), _or_none(_is_number)),
        **dict.fromkeys(("workers", "period"), _or_none(_is_number)),
        lr_scale=_is_number,
        scales=_NUMBERS,
        betas=_or_none(lambda value: _NUMBERS(value) and len(value) == 2),
        precision=_or_none(_TEXT),
    ),
    "memories": _fields(
        {
            "policies": lambda value: _list_of(_DICT)(value) and len(value) > 0,
            "monitors": _list_of(_DICT),
            "signals": _dict_of(_or_none(_is_number)),
            "strategy": _DICT,
        }
    ),
    "averaging": _fields({"since": _is_count, "count": _is_count}),
    "micro_batch": _fields({"rows": _or_none(_is_count), "seconds": _dict_of(_NUMBERS)}),
    "seconds": _is_number,
    "made_with": _fields({"policy": _TEXT, "control": _list_of(_TEXT), "sync": _TEXT}),
}
_DTYPES = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_HOST = _fields(
    {
        "estimator": _TEXT,
        "history": _list_of(
            lambda row: isinstance(row, dict) and _list_of(_DICT)(row.get("batches"))
        ),
        "classes": _or_none(_is_a(list)),
        "callbacks": _dict_of(_DICT),
    },
    inputs=_fields(
        {},
        dtypes=_list_of(lambda name: isinstance(name, str) and name in _DTYPES),
        matrix=_or_none(_BOOL),
        logits=_or_none(_BOOL),
        labels=_or_none(_is_a(list)),
        column=_BOOL,
        y_ndim=_or_none(_is_count),
        ndim=_or_none(_is_count),
    ),
)


def _is_table(columns: int) -> Check:
    return lambda value: (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.dtype.is_floating_point
        and value.ndim == 2
        and value.shape[1] == columns
    )


def check_state(content: Mapping[str, Any], origin: str) -> None:
    """Raise StateError unless a state has the form that saving gives it.

    Parameters
    ----------
    content : mapping
        What was read from a file.
    origin : str
        Where it came from, for messages.
    """
    tensors = content["tensors"]
    try:
        plain = json.loads(content["json"])
        parts = Part(plain["parts"])
        wrong = list(_wrong(plain, tensors, parts))
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        found = (str(error) or repr(error)).splitlines()[0]
        raise StateError(f"{origin} is damaged or was tampered with: {found}.") from error
    if wrong:
        raise StateError(
            f"{origin} is damaged or was tampered with: {', '.join(wrong)} cannot be what "
            "save_state wrote."
        )


def _wrong(plain: Any, tensors: Any, parts: Part) -> list[str]:
    wrong = []
    if Part.POSITION in parts:
        wrong += [name for name, check in _POSITION.items() if not check(plain[name])]
        if not _DICT(plain.get("stream", {})):
            wrong.append("stream")
    if Part.MODEL in parts:
        pairs = _list_of(lambda pair: _list_of(_TEXT)(pair) and len(pair) == 2)
        if not _or_none(pairs)(plain["frozen"]):
            wrong.append("frozen")
        wrong += [name for name in ("modules", "optimizers") if not _dict_of(_DICT)(tensors[name])]
    if Part.REPLICAS in parts and not _DICT(tensors["replicas"]):
        wrong.append("replicas")
    if Part.RECORDS in parts:
        if not _list_of(_TEXT)(plain["columns"]):
            wrong.append("columns")
        elif not _is_table(len(plain["columns"]))(tensors["updates"]):
            wrong.append("updates")
        if not _is_table(len(EPOCH_COLUMNS))(tensors["epochs"]):
            wrong.append("epochs")
    if Part.RNG in parts and not _list_of(_is_a(torch.Tensor))(tensors["rng"]):
        wrong.append("rng")
    if Part.HOST in parts:
        if not _HOST(plain["host"]):
            wrong.append("host")
        if not _dict_of(_DICT)(tensors["host"]):
            wrong.append("callbacks")
    return wrong
