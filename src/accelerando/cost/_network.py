"""What it takes to bring the gradients of all workers together, once per update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from accelerando.cost._checks import check_number

BYTES_PER_PARAMETER = 4  # gradients travel as 32-bit floats
ARCHITECTURES = ("all-reduce", "centralized")


@dataclass(frozen=True)
class Network:
    """The network between the workers.

    Parameters
    ----------
    bandwidth : float
        Bits per second that one machine can send while it receives as many; ``10e9`` is "10 Gb/s".
    latency : float
        Seconds until the first bit of a message arrives.

    Examples
    --------
    >>> from accelerando.cost import Network
    >>> Network(bandwidth=10e9, latency=50e-6)
    Network(bandwidth=10000000000.0, latency=5e-05)
    """

    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        check_number("bandwidth", self.bandwidth, above=0, infinite=True)
        check_number("latency", self.latency, least=0)

    def seconds(self, size: float) -> float:
        """Return how long a message of so many bytes takes."""
        return self.latency + 8 * size / self.bandwidth


INSTANT = Network(bandwidth=math.inf)


class Preset(NamedTuple):
    """A network with the way in which it is used.

    Attributes
    ----------
    network : Network
        Bandwidth and latency.
    architecture : {"all-reduce", "centralized"}
        How gradients meet on it; see :func:`communication`.
    """

    network: Network
    architecture: str


_MODERATE = Network(bandwidth=54e9, latency=0.05e-6)

PRESETS = MappingProxyType(
    {
        "decentralized-moderate": Preset(_MODERATE, "all-reduce"),
        "decentralized-high": Preset(Network(bandwidth=800e9, latency=0.025e-6), "all-reduce"),
        "centralized": Preset(_MODERATE, "centralized"),
    }
)
"""The networks that the AdaDamp paper simulates in its Table 2, by the names it gives them."""


def communication(
    architecture: str, workers: int, size: float, network: Network
) -> tuple[float, float]:
    r"""Return the seconds that one update spends on the network, and the bytes that all send.

    With :math:`P` workers, :math:`n` bytes of gradients, latency :math:`\alpha` and bandwidth
    :math:`\beta` (in bytes per second):

    ``"all-reduce"`` is a ring: :math:`2(P-1)` steps in each of which every worker passes a
    :math:`P`-th of the gradients on (Patarasuk and Yuan). It sends as little as any all-reduce can.

    .. math:: T = 2 (P - 1) \left(\alpha + \frac{n}{P \beta}\right)

    ``"centralized"`` is a parameter server (Li et al.): one machine sends the model to each worker
    and gets a gradient from each, all through its one link (Sievert).

    .. math:: T = 2 \left(\alpha + \frac{P n}{\beta}\right)

    A single worker of the first kind has nobody to talk to; one of the second still talks to the
    server.

    Parameters
    ----------
    architecture : {"all-reduce", "centralized"}
        Which of the two.
    workers : int
        How many compute gradients, :math:`P`.
    size : float
        Bytes of the gradients of one worker, :math:`n`: four for each parameter of the model.
    network : Network
        What they are sent through.

    Returns
    -------
    seconds : float
        The time :math:`T`.
    sent : float
        Bytes that all machines send together.

    References
    ----------
    P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
    J. Parallel Distrib. Comput. 69(2), 2009.

    M. Li et al., *Scaling distributed machine learning with the parameter server*, OSDI 2014.

    S. Sievert, *Training machine learning models faster with Dask*, SciPy 2021, steps 1 to 4 of its
    section on architecture.

    Examples
    --------
    >>> from accelerando.cost import Network, communication
    >>> communication("all-reduce", 4, 8e6, Network(bandwidth=1e9))
    (0.096, 48000000.0)
    >>> communication("centralized", 4, 8e6, Network(bandwidth=1e9))
    (0.512, 64000000.0)
    """
    check_architecture(architecture)
    if architecture == "centralized":
        return 2 * network.seconds(workers * size), 2 * workers * size
    steps = 2 * (workers - 1)
    return steps * network.seconds(size / workers), steps * size


def check_architecture(architecture: str) -> None:
    """Raise unless it is one of the two."""
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture must be one of {', '.join(map(repr, ARCHITECTURES))}. "
            f"Got {architecture!r} instead."
        )


def resolve(network: Network | str | None, architecture: str | None) -> Preset:
    """Return network and architecture of what a user may pass for them."""
    if isinstance(network, str):
        if network not in PRESETS:
            raise ValueError(
                f"network must be a Network or one of {', '.join(map(repr, PRESETS))}. "
                f"Got {network!r} instead."
            )
        preset = PRESETS[network]
        return preset if architecture is None else Preset(preset.network, architecture)
    if network is not None and not isinstance(network, Network):
        raise TypeError(
            "network must be a Network(bandwidth, latency), the name of a preset "
            f"({', '.join(PRESETS)}) or None. Got {network!r} instead."
        )
    chosen = architecture if architecture is not None else "all-reduce"
    check_architecture(chosen)
    return Preset(network or INSTANT, chosen)
