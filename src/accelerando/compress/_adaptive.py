"""A policy that changes a codec's settings while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerando.batch_size import Signals
from accelerando.compress._codec import Codec, Compressor
from accelerando.compress._feedback import ErrorFeedback

Rule = Callable[[Signals], Mapping[str, Any] | Compressor | None]


@dataclass(frozen=True)
class Adaptive(Compressor):
    """Let a rule choose budget, bits or any other setting before each update.

    The rule is a pure function of the :class:`~accelerando.batch_size.Signals`, on which all ranks
    agree. What it returns holds for one update.

    Parameters
    ----------
    codec : Codec or ErrorFeedback
        The settings to begin with.
    rule : callable
        From signals to a dictionary of changed settings, to another codec, or to None (as it is).

    Examples
    --------
    >>> from accelerando.batch_size import Signals
    >>> from accelerando.compress import QSGD, Adaptive
    >>> few_at_first = Adaptive(QSGD(bits=2), lambda signals: {"bits": min(8, 2 + signals.epoch)})
    >>> few_at_first.at(Signals(update=900, epoch=3, examples=0, batch_size=0, n_examples=None))
    QSGD(bits=5, bucket=512, norm=2.0, coding='packed')
    """

    codec: Codec | ErrorFeedback
    rule: Rule

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec | ErrorFeedback):
            raise TypeError(
                "codec of Adaptive must be a codec of accelerando.compress or ErrorFeedback of "
                f"one. Got {self.codec!r}."
            )
        if not callable(self.rule):
            raise TypeError(f"rule of Adaptive must be a function of signals. Got {self.rule!r}.")

    def at(self, signals: Signals) -> Codec | ErrorFeedback:
        """Return the codec for the update that these signals precede."""
        wanted = self.rule(signals)
        if wanted is None:
            return self.codec
        if isinstance(wanted, Mapping):
            return self.codec.with_settings(**wanted)
        if isinstance(wanted, Codec | ErrorFeedback):
            return wanted
        raise TypeError(
            "The rule of Adaptive must return a dictionary of settings, a codec, or None. Got "
            f"{wanted!r}."
        )
