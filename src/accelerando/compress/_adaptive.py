"""A rule that changes a codec's settings during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerando._validation import parameter_error
from accelerando.compress._codec import Codec, Compressor
from accelerando.compress._feedback import ErrorFeedback

_CODECS = "a codec of accelerando.compress or ErrorFeedback of one"

# Signals are any object with attributes such as update, epoch and loss.
Rule = Callable[[Any], Mapping[str, Any] | Compressor | None]


@dataclass(frozen=True)
class Adaptive(Compressor):
    """Let a rule choose the settings of a codec before each update.

    The rule is a pure function of the signals that policies see. All ranks have the same signals,
    so they choose the same settings. The settings hold for one update.

    Parameters
    ----------
    codec : Codec or ErrorFeedback
        The codec with its initial settings.
    rule : callable
        Takes the signals, an object with attributes such as ``update``, ``epoch`` and ``loss``.
        Returns a dictionary of changed settings, another codec, or None to leave `codec` as it is.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from accelerando.compress import QSGD, Adaptive
    >>> growing = Adaptive(QSGD(bits=2), lambda signals: {"bits": min(8, 2 + signals.epoch)})
    >>> growing.at(SimpleNamespace(update=900, epoch=3))
    QSGD(bits=5, bucket=512, norm=inf, warmup_epochs=0)
    """

    codec: Codec | ErrorFeedback
    rule: Rule

    def _check(self) -> None:
        if not isinstance(self.codec, Codec | ErrorFeedback):
            raise TypeError(str(parameter_error(self, "codec", _CODECS, self.codec)))
        if not callable(self.rule):
            raise TypeError(str(parameter_error(self, "rule", "a function of signals", self.rule)))

    def at(self, signals: Any) -> Codec | ErrorFeedback:
        """Return the codec for the next update.

        Parameters
        ----------
        signals : object
            The signals before the update, as attributes.
        """
        chosen = self.rule(signals)
        if chosen is None:
            return self.codec
        if isinstance(chosen, Mapping):
            return self.codec.with_settings(**chosen)
        if isinstance(chosen, Codec | ErrorFeedback):
            return chosen
        raise TypeError(
            "The rule of Adaptive must return a dictionary of settings, a codec, or None. Got "
            f"{chosen!r} instead."
        )
