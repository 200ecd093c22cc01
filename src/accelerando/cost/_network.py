"""Network between workers, and the time in which it sums the gradients of an update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from accelerando._validation import check_choice, check_number, parameter_error

BYTES_PER_PARAMETER = 4  # gradients are sent as 32-bit floats
ARCHITECTURES = ("all-reduce", "centralized")


@dataclass(frozen=True)
class Network:
    """The network between the workers.

    Parameters
    ----------
    bandwidth : float
        Bits per second that one machine can send and receive at the same time; ``10e9`` is
        10 Gb/s.
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
        also = {math.inf: "math.inf (communication takes no time)"}
        check_number(self, "bandwidth", self.bandwidth, above=0, also=also)
        check_number(self, "latency", self.latency, minimum=0)

    def seconds(self, size: float) -> float:
        """Return the time in seconds to send a message of `size` bytes."""
        return self.latency + 8 * size / self.bandwidth


INSTANT = Network(bandwidth=math.inf)


class Preset(NamedTuple):
    """A network and the algorithm that sums gradients on it.

    Attributes
    ----------
    network : Network
        Bandwidth and latency.
    architecture : {"all-reduce", "centralized"}
        The algorithm; see :func:`communication`.
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
"""The networks that the AdaDamp paper simulates in its Table 2, by their names there."""

_NETWORKS = f"a Network, {', '.join(map(repr, PRESETS))} or None"


def communication(
    architecture: str, workers: int, size: float, network: Network
) -> tuple[float, float]:
    r"""Return the seconds that one update spends on communication, and the bytes that are sent.

    With :math:`P` workers, :math:`n` bytes of gradients, latency :math:`\alpha` and bandwidth
    :math:`\beta` (in bytes per second):

    ``"all-reduce"`` is a ring: :math:`2(P-1)` steps, in each of which every worker sends a
    :math:`P`-th of the gradients to the next one (Patarasuk and Yuan). No all-reduce sends fewer
    bytes.

    .. math:: T = 2 (P - 1) \left(\alpha + \frac{n}{P \beta}\right)

    ``"centralized"`` is a parameter server (Li et al.): one machine sends the model to each worker
    and receives a gradient from each, all through its single link (Sievert).

    .. math:: T = 2 \left(\alpha + \frac{P n}{\beta}\right)

    A single worker needs no all-reduce, but it still communicates with a parameter server.

    Parameters
    ----------
    architecture : {"all-reduce", "centralized"}
        The algorithm.
    workers : int
        The number of workers, :math:`P`.
    size : float
        The bytes of the gradients of one worker, :math:`n`: four per parameter of the model.
    network : Network
        The network.

    Returns
    -------
    seconds : float
        The time :math:`T`.
    sent : float
        The bytes that all machines send.

    References
    ----------
    P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
    J. Parallel Distrib. Comput. 69(2), 2009.

    M. Li et al., *Scaling distributed machine learning with the parameter server*, OSDI 2014.

    S. Sievert, *Training machine learning models faster with Dask*, SciPy 2021, steps 1 to 4 of its
    section on architecture.

    Examples
    --------
    >>> communication("all-reduce", 4, 8e6, Network(bandwidth=1e9))
    (0.096, 48000000.0)
    >>> communication("centralized", 4, 8e6, Network(bandwidth=1e9))
    (0.512, 64000000.0)
    """
    check_choice("plan", "architecture", architecture, ARCHITECTURES)
    if architecture == "centralized":
        return 2 * network.seconds(workers * size), 2 * workers * size
    steps = 2 * (workers - 1)
    return steps * network.seconds(size / workers), steps * size


def resolve(network: Network | str | None, architecture: str | None) -> Preset:
    """Return network and architecture for the values that a user passed."""
    if isinstance(network, str):
        if network not in PRESETS:
            raise parameter_error("plan", "network", _NETWORKS, network)
        preset = PRESETS[network]
        return preset if architecture is None else Preset(preset.network, architecture)
    if network is not None and not isinstance(network, Network):
        raise TypeError(str(parameter_error("plan", "network", _NETWORKS, network)))
    chosen = architecture if architecture is not None else "all-reduce"
    check_choice("plan", "architecture", chosen, ARCHITECTURES)
    return Preset(network or INSTANT, chosen)
