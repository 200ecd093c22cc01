"""Part (a) of compression.py: what codecs do to real gradients."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from _cifar import cifar, resnet, scaled
from _common import console, print_table
from accelerando._engine.comm.exchange import is_small
from accelerando.compress import (
    QSGD,
    Atomo,
    Codec,
    LqQuantize,
    TernGrad,
    TopK,
)

CODECS: dict[str, Codec] = {
    **{f"Atomo({s})": Atomo(s) for s in (1, 2, 3, 4)},
    "Atomo(3), exact": Atomo(3, method="exact"),
    "Atomo(3), randomized": Atomo(3, method="randomized"),
    "Atomo(1 %, entries)": Atomo(0.01, atoms="entries"),
    "Atomo(1 %, fourier)": Atomo(0.01, atoms="fourier"),
    **{f"QSGD({b})": QSGD(b) for b in (1, 2, 4, 8)},
    **{f"QSGD({b}), a layer": QSGD(b, bucket=None) for b in (1, 2, 4, 8)},
    **{f"QSGD({b}), largest": QSGD(b, norm=math.inf) for b in (2, 4, 8)},
    "TernGrad": TernGrad(),
    "LqQuantize(4)": LqQuantize(4),
    "TopK(1 %)": TopK(0.01),
}


def gradients(
    x: torch.Tensor, y: torch.Tensor, *, width: int, epochs: int, rows: int, batch: int
) -> list[list[torch.Tensor]]:
    """Train, and return the large layers' gradients before it and after each epoch."""
    torch.manual_seed(0)
    model, criterion = resnet(width), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []

    def gradient(of: torch.Tensor) -> None:
        optimizer.zero_grad()
        criterion(model(x[of]), y[of]).backward()

    for epoch in range(epochs + 1):
        order = torch.randperm(rows)
        gradient(order[:batch])
        large = [p.grad.clone() for p in model.parameters() if not is_small(p)]
        found.append(large)
        if epoch < epochs:
            for part in order.split(batch):
                gradient(part)
                optimizer.step()
        console.print(f"gradient {epoch}: {sum(g.numel() for g in large):,} numbers")
    return found


def fastest(action: Callable[[], Any], times: int) -> float:
    """Return the seconds of the fastest of a few times."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measured(codec: Codec, found: list[list[torch.Tensor]], times: int) -> dict[str, float]:
    """Return what a codec does to gradients."""
    source = torch.Generator().manual_seed(0)
    sizes, errors, theory, encoding, decoding = [], [], [], 0.0, 0.0
    for gradient in found:
        square = sum(float(g.double().square().sum()) for g in gradient)
        payloads = [codec.encode(g, source) for g in gradient]
        sizes.append(sum(map(len, payloads)))
        lost = 0.0
        for g, payload in zip(gradient, payloads, strict=True):
            lost += float((codec.decode(payload, g.shape) - g).double().square().sum())
        errors.append(lost / square)
        theory.append(sum(codec.expected_error(g) for g in gradient) / square)
        encoding += fastest(lambda g=gradient: [codec.encode(part, source) for part in g], times)
        decoding += fastest(
            lambda g=gradient, p=payloads: [
                codec.decode(a, b.shape) for a, b in zip(p, g, strict=True)
            ],
            times,
        )
    whole = sum(g.nbytes for g in found[0])
    return {
        "bytes": float(np.mean(sizes)),
        "share": float(np.mean(sizes)) / whole,
        "encode_seconds": encoding / len(found),
        "decode_seconds": decoding / len(found),
        "variance": float(np.mean(errors)),
        "expected_variance": float(np.mean(theory)),
        "variance_of_each": errors,
    }


def throughput(codec: Codec, tensor: torch.Tensor, times: int) -> dict[str, float]:
    """Return megabytes of float32 per second."""
    source = torch.Generator().manual_seed(0)
    payload = codec.encode(tensor, source)
    return {
        "encode": tensor.nbytes / 1e6 / fastest(lambda: codec.encode(tensor, source), times),
        "decode": tensor.nbytes / 1e6 / fastest(lambda: codec.decode(payload, tensor.shape), times),
        "bits": 8 * len(payload) / tensor.numel(),
    }


def codecs_alone(*, data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure all codecs on real gradients and on a long vector; return the results."""
    times = 1 if quick else 4
    settings = {
        "width": 16 if quick else 64, "epochs": 1 if quick else 3, "batch": 128,
        "rows": 256 if quick else 1280,
    }  # fmt: skip
    images = cifar(data)
    x, y = scaled(torch.from_numpy(images.x_train)), torch.from_numpy(images.y_train)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    found = gradients(x, y, **settings)
    torch.set_num_threads(1)
    rows, table = {}, []
    for name, codec in CODECS.items():
        row = rows[name] = measured(codec, found, times)
        table.append(
            [
                name,
                f"{row['bytes']:,.0f}",
                f"{row['share']:.2%}",
                f"{1e3 * row['encode_seconds']:.1f}",
                f"{1e3 * row['decode_seconds']:.1f}",
                f"{row['variance']:.3g}",
                f"{row['expected_variance']:.3g}",
            ]
        )
    columns = ["codec", "bytes", "of float32", "encode ms", "decode ms", "variance", "by theory"]
    print_table(f"Gradients of {sum(g.nbytes for g in found[0]):,} bytes", columns, table)

    numbers = 400_000 if quick else 4_000_000
    tensor = 0.01 * torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    flat = {name: codec for name, codec in CODECS.items() if "Atomo(" not in name or "%" in name}
    speeds = {name: throughput(codec, tensor, times) for name, codec in flat.items()}
    print_table(
        f"Megabytes of float32 per second and core, {numbers:,} numbers",
        ["codec", "encode", "decode", "bits"],
        [
            [name, f"{s['encode']:.0f}", f"{s['decode']:.0f}", f"{s['bits']:.2f}"]
            for name, s in speeds.items()
        ],
    )
    return {"settings": settings, "codecs": rows, "throughput": speeds}
