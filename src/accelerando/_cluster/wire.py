"""The wire format of messages: JSON with the kind of the message and its fields.

Nothing is pickled. Unknown kinds and fields are refused, because they mean that the processes of a
cluster run different versions of accelerando.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

from accelerando._cluster.messages import Message

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
_KNOWN = {kind: {f.name for f in fields(cls)} for kind, cls in KINDS.items()}
_REQUIRED = {
    kind: {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    for kind, cls in KINDS.items()
}
# JSON has no tuples.
_TUPLES = {
    kind: [f.name for f in fields(cls) if str(f.type).startswith("tuple")]
    for kind, cls in KINDS.items()
}
_VERSIONS = "Install the same version of accelerando in all processes of the cluster."


def encode(message: Message) -> str:
    """Return a message as JSON.

    Examples
    --------
    >>> from accelerando._cluster.messages import Abandon
    >>> encode(Abandon(generation=3))
    '{"kind": "Abandon", "generation": 3}'
    """
    kind = type(message).__name__
    if KINDS.get(kind) is not type(message):
        raise TypeError(f"{kind} is not sent between processes.")
    return json.dumps({"kind": kind, **vars(message)})


def decode(text: str | bytes) -> Message:
    """Return the message that :func:`encode` wrote.

    Raises
    ------
    ValueError
        If the kind or a field is not known, or a field is missing: driver and workers run
        different versions of accelerando.

    Examples
    --------
    >>> decode('{"kind": "SendState", "blob": "state/0", "parts": ["REPLICAS"]}')
    SendState(blob='state/0', parts=('REPLICAS',))
    """
    content = json.loads(text)
    kind = content.pop("kind", None) if isinstance(content, dict) else None
    if kind not in KINDS:
        raise ValueError(
            f"A message has the unknown kind {kind!r}. Known kinds: {', '.join(KINDS)}. {_VERSIONS}"
        )
    unknown, missing = content.keys() - _KNOWN[kind], _REQUIRED[kind] - content.keys()
    if unknown or missing:
        wrong = [f"the unknown field {name!r}" for name in sorted(unknown)]
        wrong += [f"no field {name!r}" for name in sorted(missing)]
        raise ValueError(f"A {kind} message has {' and '.join(wrong)}. {_VERSIONS}")
    for name in _TUPLES[kind]:
        if content.get(name) is not None:
            content[name] = tuple(content[name])
    message: Message = KINDS[kind](**content)
    return message
