r"""Curvature: trace and largest eigenvalue of the Hessian of a batch's loss.

A product :math:`H v` is the gradient of :math:`g \cdot v`, one more backward pass. Hutchinson's
estimate of the trace is the mean of :math:`v^\top H v` over random signs :math:`v`; the power
method finds the eigenvalue that is largest in absolute value. The model is in evaluation mode, and
nothing of it changes. Ranks draw the same vectors and add up their shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelerando._engine.data.feed import Batch, unpack
from accelerando._engine.micro_batch import mass
from accelerando.exceptions import UnsupportedError
from accelerando.monitor._monitor import CurvatureSeen

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit

_DRAWS = 2  # the third number of the seed, which separates these draws from those of measurements


def look_at_curvature(fit: Fit, batch: Batch) -> CurvatureSeen:
    """Return trace and largest eigenvalue of the Hessian of the batch's loss, and the time it took.

    Raises
    ------
    UnsupportedError
        If an operation of the module has no second derivative.
    """
    started = time.perf_counter()
    samples, iterations = fit.control.curvature
    generator = torch.Generator().manual_seed(
        (fit.state.seed * 1_000_003 + fit.state.position.update) * 10 + _DRAWS
    )
    hessian = _Hessian(fit, batch)
    traces = []
    for _ in range(samples):
        signs = [
            (2 * torch.randint(0, 2, p.shape, generator=generator) - 1).to(p)
            for p in fit.model.parameters
        ]
        traces.append(hessian.along(signs))
    top = hessian.top(generator, iterations) if iterations else float("nan")
    fit.model.train(True)
    seconds = time.perf_counter() - started
    return CurvatureSeen(sum(traces) / max(1, samples), top, fit.comm.mean_seconds(seconds)[0])


class _Hessian:
    """The Hessian of the loss of a batch, as products with vectors."""

    def __init__(self, fit: Fit, batch: Batch) -> None:
        self.fit, self.parameters = fit, fit.model.parameters
        model, comm = fit.model, fit.comm
        model.train(False)
        X, y = unpack(batch.data)
        held = float(mass(model.criterion, y, batch.held)) if batch.held else 0.0
        whole = held if comm.alone else comm.sum(held)[0]
        share = 1.0 if fit.spec.sums else held / whole if whole else 0.0
        self.gradient: list[torch.Tensor | None] = [None] * len(self.parameters)
        if held:
            with torch.enable_grad():
                loss = model.loss(model.forward(X, model.module), y, X, training=False) * share
                self.gradient = self._second(
                    lambda: torch.autograd.grad(
                        loss, self.parameters, create_graph=True, allow_unused=True
                    )
                )

    def _second(self, compute: Callable[[], tuple[torch.Tensor, ...]]) -> list[torch.Tensor | None]:
        try:
            return list(compute())
        except RuntimeError as error:
            raise UnsupportedError(
                "Curvature needs second derivatives, and an operation of the module or of the "
                f"criterion has none: {str(error).splitlines()[0]} Leave the monitor out."
            ) from error

    def product(self, vector: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return this process's share of the product with a vector."""
        pairs = [
            (g, v)
            for g, v in zip(self.gradient, vector, strict=True)
            if g is not None and g.requires_grad
        ]
        if not pairs:
            return [torch.zeros_like(v) for v in vector]
        along = torch.stack([(g * v).sum() for g, v in pairs]).sum()
        found = self._second(
            lambda: torch.autograd.grad(
                along, self.parameters, retain_graph=True, allow_unused=True
            )
        )
        return [torch.zeros_like(v) if h is None else h for h, v in zip(found, vector, strict=True)]

    def along(self, vector: list[torch.Tensor]) -> float:
        """Return the quadratic form of a vector, over all ranks."""
        found = sum(float((h * v).sum()) for h, v in zip(self.product(vector), vector, strict=True))
        return found if self.fit.comm.alone else self.fit.comm.sum(found)[0]

    def top(self, generator: torch.Generator, iterations: int) -> float:
        """Return the eigenvalue that is largest in absolute value, by the power method."""
        vector = [torch.randn(p.shape, generator=generator).to(p) for p in self.parameters]
        value = 0.0
        for _ in range(iterations):
            length = float(sum(float((v * v).sum()) for v in vector)) ** 0.5
            if length == 0.0:
                return 0.0
            vector = [v / length for v in vector]
            product = self._agreed(self.product(vector))
            value = sum(float((h * v).sum()) for h, v in zip(product, vector, strict=True))
            vector = product
        return value

    def _agreed(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sum of tensors over the ranks; gradients carry them."""
        if self.fit.comm.alone:
            return tensors
        kept = [p.grad for p in self.parameters]
        for parameter, tensor in zip(self.parameters, tensors, strict=True):
            parameter.grad = tensor.clone()
        self.fit.comm.sum_gradients(self.parameters)
        found = [p.grad.clone() for p in self.parameters if p.grad is not None]
        for parameter, before in zip(self.parameters, kept, strict=True):
            parameter.grad = before
        return found
