"""State files: written whole or not at all, read without running anything.

Tensors are stored by ``torch.save`` and read with ``weights_only=True``; everything else is JSON
inside the file, checked by :mod:`~accelerando._engine.state_check`. Loading a file from somebody
else cannot execute code. The last bytes of a file are
a checksum of the others.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable
from typing import IO, Any

import torch

from accelerando._engine._torch import pack, unpack
from accelerando._engine.position import Part
from accelerando._folder import Folder, split_path
from accelerando.exceptions import StateError

__all__ = ["from_version_4", "is_unfinished", "pack", "read", "read_from", "unpack", "write"]

FORMAT = "accelerando-state"
VERSION = 6
_MARK = b"sha256::"
_TRAILER = len(_MARK) + hashlib.sha256().digest_size

Content = dict[str, Any]


class _Hashed:
    """A file that computes the checksum of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sum = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sum.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def dump(content: Content, file: IO[bytes]) -> None:
    """Write tensors and JSON texts to a file, and their checksum after them."""
    hashed = _Hashed(file)
    try:
        torch.save({"format": FORMAT, "version": VERSION, **content}, hashed)  # type: ignore[arg-type]
    except RuntimeError as error:
        # PyTorch closes its archive and raises another error that does not name the cause.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    file.write(_MARK + hashed.sum.digest())


def write(path: str | os.PathLike[str], content: Content) -> None:
    """Write what ``state_dict`` returned to a file, atomically."""
    folder, name = split_path(path)
    folder.write(name, lambda file: dump(content, file))


def read(path: str | os.PathLike[str]) -> Content:
    """Return the content of a state file in the present format, or raise StateError."""
    return read_from(*split_path(path))


def read_from(folder: Folder, name: str) -> Content:
    """Return the content of a state file in a directory, with the records that it refers to."""
    content = parse(folder.read(name), folder.path(name))
    if "journal" in content:
        from accelerando._engine.journal import with_records

        return with_records(content, folder)
    return content


def parse(stored: bytes, path: str) -> Content:
    """Return the content of a state file in the present format, or raise StateError.

    Parameters
    ----------
    stored : bytes
        The file.
    path : str
        Where it is, for messages.
    """
    is_summed = stored[-_TRAILER:].startswith(_MARK)
    body = memoryview(stored)[:-_TRAILER] if is_summed else memoryview(stored)
    if is_summed and hashlib.sha256(body).digest() != stored[len(_MARK) - _TRAILER :]:
        raise StateError(f"{path} is damaged: its checksum does not match.")
    try:
        content = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # what PyTorch raises depends on where the damage is
        raise StateError(
            f"{path} is not a state that save_state wrote, or it is damaged: "
            f"{(str(error) or repr(error)).splitlines()[0]}"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StateError(
            f"{path} is not a state that save_state wrote. Files of save_params are read with "
            "load_params."
        )
    version: Any = content.get("version")
    reader = READERS.get(version)
    if reader is None:
        known = ", ".join(map(str, READERS))
        raise StateError(
            f"{path} has version {version} of the state format; this accelerando reads the "
            f"versions {known}."
        )
    if version == VERSION and not is_summed:
        raise StateError(f"{path} is damaged: its end is missing.")
    try:
        found = reader(content)
    except KeyError as error:
        raise StateError(f"{path} is damaged: {error} is missing.") from error
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise StateError(f"{path} is damaged: {error!r}") from error
    if not isinstance(found["json"], str) or not isinstance(found["tensors"], dict):
        raise StateError(f"{path} is damaged: its parts are not texts and tensors.")
    return found


def is_unfinished(content: Content) -> bool:
    """Return True if a state is of a run that ended before its last epoch did."""
    position = json.loads(content["json"])["position"]
    return bool(position["epoch"] < position["until"])


def from_version_4(content: Content) -> Content:
    """Convert a file of version 4 into the present format."""
    plain = json.loads(content["json"])
    run, replicas = plain["run"], content["ranks"]
    new = {
        "parts": Part.ALL.value,
        **_position_of_version_4(run),
        "micro_batch": plain["micro_batch"],
        "made_with": _made_with_of_version_4(plain),
        "frozen": None,
        "columns": [_COLUMNS_OF_VERSION_4.get(name, name) for name in plain["columns"]],
        "host": {name: plain[name] for name in ("estimator", "history", "classes", "callbacks")},
    }
    tensors = {
        **{name: content[name] for name in ("modules", "optimizers", "updates", "epochs", "rng")},
        "replicas": {
            present: replicas[former]
            for present, former in _REPLICAS_OF_VERSION_4.items()
            if former in replicas
        },
        "host": content["callback_tensors"],
    }
    return {"json": json.dumps(new), "tensors": tensors}


_COLUMNS_OF_VERSION_4 = {"synchronisations": "averagings"}
_REPLICAS_OF_VERSION_4 = {
    "parameters": "ranks",
    "optimizer_state": "memories",
    "center": "centre",
    "center_memory": "pace",
}


def _position_of_version_4(run: dict[str, Any]) -> dict[str, Any]:
    control, sync = run["control"], run["sync"]
    decided = control.get("wish", {})
    position = ("epoch", "cursor", "update", "examples", "until", "n_examples", "epoch_open")
    unknown = math.nan
    return {
        "seed": run["seed"],
        "seeded": run["seeded"],
        "position": {name: run[name] for name in position},
        "last": [
            run["last_rows"],
            unknown if run["last_loss"] is None else run["last_loss"],
            unknown if run["last_grad_norm"] is None else run["last_grad_norm"],
        ],
        "batch_size": run["batch_size"],
        "lr_scale": run["lr_scale"],
        "settings": decided,
        "memories": {
            "policies": [run["policy_state"], *control.get("policies", [])],
            "monitors": control.get("monitors", []),
            "signals": control.get("signals", {}),
            "strategy": sync.get("state", {}),
        },
        "averaging": {"since": sync.get("since", 0), "count": sync.get("count", 0)},
        "seconds": run["seconds"],
    }


def _made_with_of_version_4(plain: dict[str, Any]) -> dict[str, Any]:
    policy, control = plain["policy"], plain.get("control", [])
    if policy in control:
        # NoiseScale or NormTest as batch_size: today it follows a constant first size.
        initial = re.search(r"initial=(\d+)", policy)
        policy = f"Constant(size={initial.group(1)})" if initial else policy
    return {"policy": policy, "control": control, "sync": plain["sync"]}


def _present(content: Content) -> Content:
    known = {"json": content["json"], "tensors": content["tensors"]}
    return {**known, "journal": content["journal"]} if "journal" in content else known


READERS: dict[int, Callable[[Content], Content]] = {
    4: from_version_4,
    5: _present,
    VERSION: _present,
}
