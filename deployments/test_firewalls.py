"""Firewalls, and networks whose addresses are translated: routers and tunnels."""

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
