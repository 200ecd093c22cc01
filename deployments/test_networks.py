"""Networks: firewalls, IPv6, and workers with two network cards."""

import contextlib
import sys

import _hosts
import pytest

from conftest import gives_up, needs, run_scenario, works

FAILING = {"do": "fit", "within": 30 + 60}  # worker_timeout, and the bound of the documentation


@pytest.fixture(scope="module")
def network():
    """A hub and two hosts."""
    with _hosts.hosts(2, "n") as made:
        yield made


@pytest.fixture(scope="module")
def cluster(network):
    """The address of a scheduler, with two workers that were started by hand."""
    with _hosts.dask_by_hand(*network) as address:
        yield address


@pytest.fixture
def firewall(network):
    """Take away what a test blocks."""
    needs("iptables", "sysctl")
    hub, others = network
    yield _hosts.only_ports
    for machine in (hub, *others):
        _hosts.run(*machine.words("iptables", "-F", "INPUT"))
        _hosts.chosen_ports(machine, 32768, 60999)


# -- firewalls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("refuses", [False, True], ids=["silent", "refusing"])
def test_a_firewall_that_passes_only_dasks_ports(network, cluster, firewall, refuses):
    hub, others = network
    for machine in others:
        firewall(machine, (9000, 9001), refuses=refuses)
    found = run_scenario(hub.words, "address", "doctor", FAILING, address=cluster)
    said = gives_up(found["fit"], "Ranks on ")
    for part in (others[0].address, others[1].address, "port", "accelerando.ports"):
        assert part in said
    assert "a firewall blocks it" in found["doctor"]["said"]


@pytest.mark.parametrize("chosen_by", ["accelerando", "the system"])
def test_ports_that_the_firewall_passes(network, cluster, firewall, chosen_by):
    hub, others = network
    environment = {}
    first, last = (36000, 36999) if chosen_by == "accelerando" else (9100, 9999)
    for machine in (hub, *others):
        firewall(machine, (8786, 8786), (9000, 9001), (first, last))
        if chosen_by == "the system":
            _hosts.chosen_ports(machine, first, last)
    if chosen_by == "accelerando":
        environment["DASK_ACCELERANDO__PORTS"] = f"{first}:{last}"
    steps = "fit", "doctor"
    found = run_scenario(hub.words, "address", *steps, address=cluster, environment=environment)
    works(found["fit"])
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


def test_a_scheduler_and_a_user_whose_other_ports_are_closed(network, cluster, firewall):
    hub = network[0]
    firewall(hub, (8786, 8786))
    found = run_scenario(hub.words, "address", "doctor", FAILING, address=cluster)
    said = gives_up(found["fit"], "A rank on ")
    assert f"It has to reach {hub.address}:" in said
    assert f"{hub.address} on Dask's port, but not" in found["doctor"]["said"]


def test_a_worker_behind_a_router():
    needs("iptables", "sysctl")
    step = {"do": "fit", "settings": {"min_workers": 1}, "within": 60}
    with (
        _hosts.hosts(2, "r") as (hub, (one, other)),
        _hosts.dask_by_hand(hub, [one]) as address,
        _hosts.router(hub, other, 9100) as outside,
        _hosts.another_worker(
            *(other, address, "--listen-address", "tcp://0.0.0.0:9000", "--no-nanny"),
            *("--contact-address", outside),
            chosen=False,
        ),
    ):
        found = run_scenario(hub.words, "address", "doctor", step, "search", address=address)
    said = gives_up(found["fit"], f"A rank on {outside} could not start")
    assert "--contact-address" in said
    assert found["search"]["models"] > 1
    assert f"Worker {outside} cannot listen as a rank does" in found["doctor"]["said"]


TUNNEL = """
import asyncio, sys

async def copy(reader, writer):
    while content := await reader.read(1 << 16):
        writer.write(content)
        await writer.drain()
    writer.close()

async def serve(*here):
    there = await asyncio.open_connection(sys.argv[1], 8786)
    await asyncio.gather(copy(here[0], there[1]), copy(there[0], here[1]), return_exceptions=True)

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 8786)
    await server.serve_forever()

asyncio.run(main())
"""


def test_a_client_behind_a_tunnel(tmp_path):
    needs("iptables", "sysctl")
    step = {"do": "fit", "settings": {"min_workers": 1}, "within": 30 + 60}
    with (
        _hosts.hosts(2, "t") as (hub, (one, laptop)),
        _hosts.dask_by_hand(hub, [one]) as address,
        _hosts.started(tmp_path) as start,
    ):
        _hosts.only_ports(hub, (8786, 8786))
        start(laptop, sys.executable, "-c", TUNNEL, hub.address)  # as ssh -L 8786:hub:8786 does
        _hosts.await_port(laptop, 8786)
        options = {"address": "tcp://127.0.0.1:8786", "workers": 1}
        found = run_scenario(laptop.words, "address", "doctor", step, "search", **options)
    said = gives_up(found["fit"], f"A rank on {_hosts.url(one, 9000)} could not start")
    assert "the client reaches the scheduler through a tunnel or a proxy" in said
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 2
    assert "A tunnel (ssh -L) or a proxy passes Dask's messages only." in found["doctor"]["said"]
    assert address.endswith(":8786")


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
