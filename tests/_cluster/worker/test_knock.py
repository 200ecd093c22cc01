"""Members of a group find out whom they cannot reach."""

import socket
import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from accelerando._cluster.worker import hooks as module
from accelerando._cluster.worker.hooks import form_or_knock
from accelerando._cluster.worker.knock import knock


@pytest.mark.parametrize("ports", [None, (36000, 36999)])
def test_members_that_reach_each_other_say_nothing(ports):
    store, errors = HashStore(), []

    def member(rank):
        try:
            knock(store, rank, 3, "127.0.0.1", ports)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    used = [int(store.get(f"knock/{rank}").split()[1]) for rank in range(3)]
    assert len(set(used)) == 3
    if ports:
        assert all(ports[0] <= port <= ports[1] for port in used)


def test_both_addresses_and_the_port_are_named():
    store = HashStore()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store.set("knock/1", f"127.0.0.1 {port}")  # nobody listens there any more
    with pytest.raises(ConnectionError, match=rf"127.0.0.1 cannot connect to .* port {port} \("):
        knock(store, 0, 2, "127.0.0.1", seconds=1.0)


def test_a_member_that_never_comes_is_not_waited_for_forever():
    store = HashStore()
    store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(RuntimeError):
        knock(store, 0, 2, "127.0.0.1")


def test_without_patience_members_without_an_address_are_left_out():
    knock(HashStore(), 0, 2, "127.0.0.1", patient=False)
    store = HashStore()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store.set("knock/2", f"127.0.0.1 {port}")
    with pytest.raises(ConnectionError):
        knock(store, 0, 3, "127.0.0.1", seconds=1.0, patient=False)


def never():
    raise AssertionError("A group that is formed at once needs no knock.")


def test_a_group_that_is_formed_at_once():
    assert form_or_knock(lambda: "group", never, lambda: None) == "group"


def test_the_error_of_a_group_that_cannot_be_formed():
    def form():
        raise RuntimeError("gloo")

    assert str(form_or_knock(form, never, lambda: None)) == "gloo"


def test_a_group_that_takes_long_ends_with_the_error_of_the_knock(monkeypatch):
    monkeypatch.setattr(module, "_LATE_SECONDS", 0.02)
    over, calls = threading.Event(), []

    def late():
        calls.append(1)
        raise ConnectionError("a cannot connect to b")

    found = form_or_knock(lambda: over.wait(60.0), late, lambda: None)
    over.set()
    assert isinstance(found, ConnectionError)
    assert calls == [1]


def test_a_knock_that_finds_nothing_or_fails_otherwise_lets_the_group_be_formed(monkeypatch):
    monkeypatch.setattr(module, "_LATE_SECONDS", 0.0)
    for error in (None, OSError("No port is free"), RuntimeError("the store")):
        tried = threading.Event()

        def late(tried=tried, error=error):
            tried.set()
            if error is not None:
                raise error

        assert form_or_knock(lambda tried=tried: tried.wait(60.0), late, lambda: None) is True


def test_members_knock_once(monkeypatch):
    monkeypatch.setattr(module, "_LATE_SECONDS", 0.0)
    calls, looks, enough = [], [], threading.Event()

    def look():
        looks.append(1)
        if len(looks) == 10:
            enough.set()

    assert form_or_knock(lambda: enough.wait(60.0), lambda: calls.append(1), look) is True
    assert calls == [1]


def test_a_group_is_given_up_while_it_is_formed():
    over = threading.Event()

    def look():
        raise KeyError("abandoned")

    with pytest.raises(KeyError, match="abandoned"):
        form_or_knock(lambda: over.wait(60.0), never, look)
    over.set()
