"""A model without an estimator, for tests of the engine."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from accelerando._engine.model import Components
from accelerando._engine.step import has_own_step, largest_number, needs_closure, offers_closure


class PlainModel:
    """A module, a criterion and an optimizer of its parameters."""

    def __init__(self, module, criterion, optimizer):
        self.components = Components(
            {"module": module}, {"criterion": criterion}, {"optimizer": optimizer}
        )
        self.module = module
        self.criterion = criterion
        self.optimizers = [optimizer]
        self.needs_closure = needs_closure(optimizer)
        self.offers_closure = offers_closure(optimizer)
        self.own_steps = has_own_step(optimizer)
        self.loss_reads_inputs = False
        self.refresh()

    def refresh(self):
        self.parameters = [parameter for _, parameter in self.components.named_parameters()]
        self.buffers = list(self.module.buffers())
        self.largest = largest_number(self.parameters)

    def train(self, mode):
        for part in (self.module, self.criterion):
            if isinstance(part, nn.Module):
                part.train(mode)

    def forward(self, X, call):
        return call(**X) if isinstance(X, Mapping) else call(X)

    def loss(self, y_pred, y, X, *, training=True):
        return self.criterion(y_pred, y)

    def step(self, closure):
        for optimizer in self.optimizers:
            optimizer.step(closure)

    def custom_step(self, batch):
        raise AssertionError("A plain model has no training step of the user's.")
