"""PowerSGD, which is not a codec: its ranks agree on factors by two all-reductions."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando._whole import is_whole
from accelerando.compress._codec import Compressor


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Low-rank gradients by one step of power iteration, through PyTorch's own hook.

    Factors of all ranks are added up rather than gathered, so that the bytes of a rank do not grow
    with their number. There is no payload to decode alone. Always with error feedback and a warm
    start, as the paper recommends; both begin anew whenever the set of ranks changes.

    Parameters
    ----------
    rank : int, default=2
        Of the approximation; at least 1.
    start : int, default=10
        Updates with whole gradients at the beginning and after each change of the ranks; at least
        2, as PyTorch's hook wants.

    References
    ----------
    Vogels, Karimireddy and Jaggi, PowerSGD: Practical low-rank gradient compression for distributed
    optimization (2019).

    Examples
    --------
    >>> from accelerando.compress import PowerSGD
    >>> PowerSGD(rank=4)
    PowerSGD(rank=4, start=10)
    """

    rank: int = 2
    start: int = 10

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("start", 2)):
            value = getattr(self, name)
            if not is_whole(value, least):
                raise ValueError(
                    f"{name} of PowerSGD must be a whole number of at least {least}. Got {value!r}."
                )
