"""Large byte strings reach the driver without the store, or through it if there is no other way."""

from __future__ import annotations

import json
import logging
import socket

import pytest
import torch

from accelerando._cluster import direct
from accelerando._cluster.address import Address
from accelerando._cluster.direct import KEY, receive_large
from accelerando._cluster.mailbox import Mailbox, Seal
from accelerando._cluster.plugins import serve_store
from accelerando._engine import model
from tests.nets import parameters_of, regressor

HOST = "127.0.0.1"


@pytest.fixture
def ends(monkeypatch):
    """Return the mailboxes of a driver and of a rank; 1,000 bytes are large."""
    monkeypatch.setattr(direct, "LARGE", 1000)
    store = serve_store(HOST)
    address = Address(HOST, store.port)
    return Mailbox(address, store), Mailbox(address)


LARGE = bytes(range(250)) * 8


def test_a_large_byte_string_does_not_take_the_store(ends):
    driver, rank = ends
    with receive_large(driver, HOST):
        rank.put("state", LARGE)
        assert not rank.store.check(["state"])
        assert driver.take("state") == LARGE
        assert driver.arrived == {}
        rank.put("small", b"abc")
        assert rank.store.check(["small"])
        assert driver.take("small") == b"abc"


def test_what_nobody_needs_is_dropped(ends):
    driver, rank = ends
    with receive_large(driver, HOST):
        rank.put("state", LARGE)
        driver.drop("state")
    assert driver.arrived == {}


def test_states_for_ranks_take_the_store(ends):
    driver, rank = ends
    with receive_large(driver, HOST):
        driver.put("state", LARGE)
        assert rank.take("state") == LARGE


def test_without_a_driver_that_listens_the_store_carries_all(ends):
    driver, rank = ends
    rank.put("state", LARGE)
    assert driver.take("state") == LARGE


def test_a_driver_out_of_reach_gets_states_through_the_store_and_the_log_says_so(ends, caplog):
    driver, rank = ends
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    driver.store.set(KEY, driver.seal.close(KEY, json.dumps({"host": HOST, "port": port}).encode()))
    with caplog.at_level(logging.INFO, logger="accelerando"):
        rank.put("state", LARGE)
        rank.put("other", LARGE)
    assert driver.take("state") == driver.take("other") == LARGE
    assert len(caplog.messages) == 1, "it is not tried again"
    assert f"cannot be reached on {HOST}:{port}" in caplog.text


@pytest.mark.parametrize("secret", ["0" * 32, "short"])
def test_strangers_are_not_heard(ends, secret):
    driver, rank = ends
    with receive_large(driver, HOST):
        rank.seal.derive = lambda purpose: secret
        rank.put("state", LARGE)
        assert driver.arrived == {}
        assert driver.take("state") == LARGE, "it took the store"


def test_a_strangers_address_gets_neither_state_nor_secret(ends):
    driver, rank = ends
    with socket.create_server((HOST, 0)) as listener:
        place = json.dumps({"host": HOST, "port": listener.getsockname()[1]}).encode()
        for forged in (place, Seal("another secret").close(KEY, place), b"", b"x" * 60):
            driver.store.set(KEY, forged)
            rank.put("state", LARGE)
            assert driver.take("state") == LARGE, "it took the store"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_half_a_byte_string_does_not_arrive(ends):
    driver, rank = ends
    with receive_large(driver, HOST):
        place = json.loads(rank.seal.open(KEY, rank.store.get(KEY), once=False))
        head = json.dumps({"blob": "state", "bytes": 2000}).encode()
        with socket.create_connection((place["host"], place["port"])) as connection:
            connection.sendall(rank.seal.derive(KEY).encode() + len(head).to_bytes(4, "big") + head)
            connection.sendall(LARGE[:500])
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(4) == b""
        assert driver.arrived == {}


def test_after_the_fit_nothing_listens(ends):
    driver, rank = ends
    with receive_large(driver, HOST):
        place = json.loads(rank.seal.open(KEY, rank.store.get(KEY), once=False))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place["host"], place["port"]), timeout=5)


@pytest.mark.timeout(120)
def test_a_fit_of_a_large_model_is_the_same_and_its_states_do_not_take_the_store(
    client, line, monkeypatch
):
    monkeypatch.setattr(model, "LARGE_MODEL", 1)
    taken, take = [], Mailbox.take

    def note(self, blob):
        taken.append((blob in self.arrived, blob))
        return take(self, blob)

    monkeypatch.setattr(Mailbox, "take", note)
    client.run(lower_the_limit, 1)
    try:
        settings = {"max_epochs": 2, "batch_size": 16, "min_workers": 2, "max_workers": 2}
        far = regressor(client=client, **settings).fit(*line)
    finally:
        client.run(lower_the_limit, direct.LARGE)
    here = regressor(max_epochs=2, batch_size=16).fit(*line)
    assert torch.allclose(parameters_of(far), parameters_of(here), atol=1e-6)
    states = [arrived for arrived, blob in taken if not blob.startswith("valid")]
    assert states
    assert all(states)


def lower_the_limit(count):
    direct.LARGE = count


def test_the_store_and_the_receiver_of_large_states_stay_in_the_range():
    ports = (36000, 36999)
    store = serve_store(HOST, ports)
    mailbox = Mailbox(Address(HOST, store.port, "", ports), store)
    assert ports[0] <= store.port <= ports[1]
    with receive_large(mailbox, HOST):
        sealed = mailbox.seal.open(KEY, mailbox.store.get(KEY), once=False)
        assert ports[0] <= json.loads(sealed)["port"] <= ports[1]
