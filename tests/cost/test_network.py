"""Networks: the time of an all-reduce and of a parameter server."""

import math

import pytest

from accelerando import cost
from accelerando.cost import PRESETS, Network
from accelerando.cost._network import communication, resolve


def test_one_worker_talks_to_a_server_but_not_to_itself():
    network = Network(bandwidth=8e6, latency=0.5)
    assert communication("all-reduce", 1, 1e6, network) == (0.0, 0.0)
    assert communication("centralized", 1, 1e6, network) == (3.0, 2e6)


def test_a_server_costs_more_than_a_ring_and_more_so_with_more_workers():
    network = PRESETS["decentralized-moderate"].network
    ratios = [
        communication("centralized", p, 1e7, network)[0]
        / communication("all-reduce", p, 1e7, network)[0]
        for p in (2, 4, 8, 40)
    ]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1


def test_presets_are_the_papers():
    assert PRESETS["decentralized-high"].network.bandwidth == 800e9
    assert PRESETS["centralized"].network == PRESETS["decentralized-moderate"].network
    assert {p.architecture for p in PRESETS.values()} == {"all-reduce", "centralized"}


@pytest.mark.parametrize(("bandwidth", "latency"), [(0, 0), (-1, 0), (1e9, -1), ("fast", 0)])
def test_wrong_networks_are_named(bandwidth, latency):
    with pytest.raises(ValueError, match=r"parameter of Network must be a number .* Got"):
        Network(bandwidth, latency)


def test_a_network_may_cost_nothing():
    assert Network(math.inf).seconds(1e12) == 0.0
    assert resolve(None, None) == (Network(math.inf), "all-reduce")


def test_a_preset_brings_its_architecture_unless_another_is_given():
    assert resolve("centralized", None).architecture == "centralized"
    assert resolve("centralized", "all-reduce") == (PRESETS["centralized"].network, "all-reduce")


def test_the_public_name_of_communication_is_deprecated():
    with pytest.warns(FutureWarning, match=r"2 \* \(P - 1\) \* network.seconds\(n / P\)"):
        old = cost.communication
    network = Network(1e9, 0.01)
    assert old("all-reduce", 8, 4e6, network)[0] == 2 * (8 - 1) * network.seconds(4e6 / 8)
