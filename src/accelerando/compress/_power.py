"""PowerSGD: low-rank gradients on which the ranks agree by two all-reduces; not a codec."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando._validation import check_integer
from accelerando.compress._codec import Compressor


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Low-rank gradients by one step of power iteration, with PyTorch's communication hook.

    The factors of all ranks are summed, not gathered. The bytes of a rank therefore do not grow
    with the number of ranks, and there is no payload to decode. Error feedback and warm start are
    always on, as the paper recommends. Both restart whenever the set of ranks changes.

    Parameters
    ----------
    rank : int, default=2
        The rank of the approximation; at least 1.
    start : int, default=10
        The number of updates with uncompressed gradients after the first one, which is never
        compressed, at the beginning and after each change of the ranks; at least 2, which is a
        requirement of PyTorch's hook.

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

    def _check(self) -> None:
        check_integer(self, "rank", self.rank)
        check_integer(self, "start", self.start, minimum=2)
