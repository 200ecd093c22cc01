"""State files: written whole or not at all, read without running anything.

Tensors are stored by ``torch.save`` and read with ``weights_only=True``; everything else is JSON
inside the file. Loading a file from somebody else cannot execute code.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from accelerando._engine._torch import pack, unpack
from accelerando._engine.position import Part
from accelerando._files import atomic_write
from accelerando.exceptions import StateError

__all__ = ["checkpoint_file", "from_version_4", "is_unfinished", "pack", "read", "unpack", "write"]

FORMAT = "accelerando-state"
VERSION = 5

Content = dict[str, Any]


def checkpoint_file(folder: str | os.PathLike[str]) -> Path:
    """Return the file of a checkpoint directory; create the directory if it does not exist."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / "state.pt"


def write(path: str | os.PathLike[str], content: Content) -> None:
    """Write what ``state_dict`` returned to a file, atomically."""
    with atomic_write(path) as file:
        torch.save({"format": FORMAT, "version": VERSION, **content}, file)


def read(path: str | os.PathLike[str]) -> Content:
    """Return the content of a state file in the present format, or raise StateError."""
    with Path(path).open("rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
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
    try:
        return reader(content)
    except KeyError as error:
        raise StateError(f"{path} is damaged: {error} is missing.") from error


def is_unfinished(path: Path) -> bool:
    """Return True if a file holds a run that ended before its last epoch did."""
    if not path.exists():
        return False
    position = json.loads(read(path)["json"])["position"]
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


READERS: dict[int, Callable[[Content], Content]] = {
    4: from_version_4,
    VERSION: lambda content: {"json": content["json"], "tensors": content["tensors"]},
}
