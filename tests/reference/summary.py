"""What is kept of a reference run, and how two of them are compared.

A run is kept as the SHA-256 of its tensors (the module and criterion apart from the optimizer),
the first values of each tensor and their sums, and the columns of the tables of updates and
epochs that do not depend on a clock.
"""

from __future__ import annotations

import hashlib
import math
import platform
from typing import Any

import numpy as np
import torch

VALUES = 16  # of each tensor
CLOCKS = {
    "seconds", "dur", "wait_seconds", "encode_seconds", "decode_seconds", "examples_per_second",
    "update_seconds", "communication_seconds", "communication_share",
}  # fmt: skip
RENAMED = {"synchronisations": "averagings"}


def fingerprint() -> dict[str, str]:
    """Return what the last bits of a result may depend on."""
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def summarize(net: Any) -> dict[str, Any]:
    """Return what is kept of a fitted estimator."""
    module, optimizer = _model_tensors(net), _optimizer_tensors(net)
    return {
        "module_sha256": _sha256(module),
        "optimizer_sha256": _sha256(optimizer),
        "module": {name: _values(tensor) for name, tensor in module.items()},
        "optimizer": {name: _values(tensor) for name, tensor in optimizer.items()},
        "updates": _columns(net.updates_frame()),
        "epochs": _columns(net.history_frame()),
    }


def _model_tensors(net: Any) -> dict[str, torch.Tensor]:
    found = dict(net.module_.state_dict())
    criterion = net.criterion_.state_dict()
    found.update({f"criterion.{name}": tensor for name, tensor in criterion.items()})
    return found


def _optimizer_tensors(net: Any) -> dict[str, torch.Tensor]:
    found = {}
    for number, memory in sorted(net.optimizer_.state_dict()["state"].items()):
        for name, value in sorted(memory.items()):
            parts = value if isinstance(value, list) else [value]
            for at, part in enumerate(parts):
                if part is not None and not isinstance(part, bool):
                    found[f"{number}.{name}.{at}"] = torch.as_tensor(part)
    return found


def _sha256(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _values(tensor: torch.Tensor) -> list[float]:
    """Return the sum, the root of the sum of squares, and the first values."""
    values = tensor.detach().double().flatten().tolist()
    whole = [math.fsum(values), math.sqrt(math.fsum(value * value for value in values))]
    return [*whole, *values[:VALUES]] if len(values) > 1 else values


def _columns(frame: Any) -> dict[str, list[float]]:
    found = {}
    for column in frame.columns:
        name = RENAMED.get(column, column)
        if name in CLOCKS or frame[column].dtype.kind not in "iufb":
            continue
        found[name] = frame[column].tolist()
    return found


def differences(
    expected: dict[str, Any], got: dict[str, Any], *, tolerance: float | None = None
) -> list[str]:
    """Say in which parts a run differs from the recorded one.

    Parameters
    ----------
    expected, got : dict
        From :func:`summarize`. What `expected` lacks is not compared.
    tolerance : float, optional
        Of the largest value of a tensor or column. None wants the same bits.
    """
    found = []
    for key, value in expected.items():
        if key.endswith("sha256"):
            if tolerance is None and value != got[key]:
                found.append(f"{key}: {value[:12]} was recorded, {got[key][:12]} computed")
        elif isinstance(value, dict):
            for name, numbers in value.items():
                said = _difference(numbers, got[key].get(name), tolerance)
                found += [f"{key}.{name}: {said}"] if said else []
    return found


def _difference(expected: list[float], got: list[float] | None, tolerance: float | None) -> str:
    if got is None:
        return "is missing"
    if len(expected) != len(got):
        return f"{len(expected)} values were recorded, {len(got)} computed"
    one, other = np.array(expected, dtype=float), np.array(got, dtype=float)
    if tolerance is None:
        same = (one == other) | (np.isnan(one) & np.isnan(other))
    else:
        finite = np.abs(one[np.isfinite(one)])
        scale = max(1.0, float(finite.max())) if len(finite) else 1.0
        same = np.isclose(one, other, rtol=0, atol=tolerance * scale, equal_nan=True)
    if same.all():
        return ""
    at = int(np.argmin(same))
    return (
        f"{np.sum(~same)} of {len(same)} differ, first [{at}]: {one[at]!r} recorded, {other[at]!r}"
    )
