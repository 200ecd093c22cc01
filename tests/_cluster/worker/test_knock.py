"""Members of a group find out whom they cannot reach."""

import socket
import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore

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
