"""Forward passes outside training: predictions and validation, whose errors are sentences."""

from __future__ import annotations

from typing import Any

from accelerando.estimators._skorch import module_of


class Evaluation:
    """skorch's steps that compute outputs, with the hints that a training step gives."""

    def evaluation_step(self, batch: Any, training: bool = False) -> Any:
        """Return the outputs of a batch."""
        try:
            return super().evaluation_step(batch, training)  # type: ignore[misc]
        except Exception as error:
            _explain(self, error, batch)
            raise

    def validation_step(self, batch: Any, **fit_params: Any) -> Any:
        """Return the loss and the outputs of a batch that was held out."""
        try:
            return super().validation_step(batch, **fit_params)  # type: ignore[misc]
        except Exception as error:
            _explain(self, error, batch)
            raise


def _explain(net: Any, error: Exception, batch: Any) -> None:
    """Raise a sentence about the batch, or add a hint to the error."""
    from accelerando._engine.hints import explain

    explain(error, batch, module_of(net))
