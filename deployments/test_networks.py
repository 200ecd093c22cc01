"""Networks: IPv6, and workers with two network cards."""

import contextlib

import _hosts
import pytest

from conftest import gives_up, run_scenario, works

# -- IPv6 -----------------------------------------------------------------------------------------


def test_ipv6():
    with (
        _hosts.hosts_on_ipv6(2) as (hub, others),
        _hosts.dask_by_hand(hub, others) as address,
    ):
        steps = "doctor", "fit", "search"
        found = run_scenario(hub.words, "address", *steps, address=address)
    assert address == "tcp://[fd77::1]:8786"
    works(found["fit"])
    assert "[W" not in found["stderr"], "c10d warns"
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


# -- two network cards ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_cards():
    """A scheduler without workers, and hosts that have a second card: eth1."""
    with _hosts.hosts(2, "c") as (hub, others):
        _hosts.second_cards(hub, others)
        with _hosts.dask_by_hand(hub, []) as address:
            yield hub, others, address


@contextlib.contextmanager
def workers_on(two_cards, *cards):
    """Start a worker on each host that listens on a card."""
    _, others, address = two_cards
    with contextlib.ExitStack() as stack:
        for machine, card in zip(others, cards, strict=True):
            stack.enter_context(_hosts.another_worker(machine, address, "--interface", card))
        yield


def test_cards_that_the_scheduler_cannot_reach(two_cards):
    hub, _, address = two_cards
    fit = {"do": "fit", "settings": {"worker_timeout": 10}, "within": 10 + 60}
    with workers_on(two_cards, "eth1", "eth1"):
        found = run_scenario(hub.words, "address", "doctor", fit, address=address)
    assert found["doctor"]["code"] == 2
    said = gives_up(found["fit"], "The cluster has had no worker for this fit")
    for number in (1, 2):
        worker = f"tcp://{_hosts.SECOND}.{number}:9000"
        assert f"Worker {worker} is registered" in found["doctor"]["said"]
        assert worker in said.partition("Workers that do not answer")[2]
    assert "--interface" in found["doctor"]["said"]
    assert "--interface" in said


def test_cards_that_reach_the_scheduler_and_not_each_other(two_cards):
    hub, others, address = two_cards
    fit = {"do": "fit", "ranks": 1, "within": 30 + 90}
    with _hosts.apart(hub, others), workers_on(two_cards, "eth0", "eth0"):
        found = run_scenario(hub.words, "address", "doctor", fit, address=address)
    one, other = (f"tcp://{machine.address}:9000" for machine in others)
    assert found["doctor"]["code"] == 2
    assert f"Worker {one} cannot reach {other}." in found["doctor"]["said"]
    assert "--interface if a machine has several networks" in found["doctor"]["said"]
    works(found["fit"], ranks=1)  # Dask cannot bring the data to the other one
    (said,) = (line for line in found["fit"]["log"] if "min_workers=2 is not met" in line)
    assert f"Ranks on {one} have not" in said or f"Ranks on {other} have not" in said
    assert "accelerando doctor" in said


def test_the_card_of_the_network_that_workers_share(two_cards):
    hub, others, address = two_cards
    with _hosts.apart(hub, others), workers_on(two_cards, "eth1", "eth1"):
        found = run_scenario(hub.words, "address", "doctor", "fit", address=address)
    works(found["fit"])
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]
