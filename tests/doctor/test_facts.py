"""Facts of a process, without accelerando and without PyTorch."""

import asyncio
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

from accelerando.doctor import _facts


def test_the_facts_need_nothing_that_may_be_missing():
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = None\n"
        "facts = runpy.run_path(sys.argv[1])['gather']()\n"
        "assert 'accelerando' not in sys.modules\n"
        "assert facts['torch'] is None and facts['torch_error'].startswith('ModuleNotFound')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, _facts.__file__], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_closed_ports_are_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port = server.getsockname()[1]
        with socket.socket() as bound:  # bound but not listening: no answer
            bound.bind(("127.0.0.1", 0))
            closed = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
            addresses = [f"tcp://127.0.0.1:{open_port}", closed, "inproc://10.0.0.1/3/1"]
            assert _facts.reach(addresses, 5.0) == [closed]


def test_the_facts_of_this_process():
    import torch

    found = _facts.gather()
    assert found["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found["versions"]["torch"] == torch.__version__
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["torch_error"] is None
    assert found["cpus"] >= 1
    assert found["memory"] > 50_000_000  # PyTorch is loaded


def test_a_process_listens_on_a_port_that_the_system_chose():
    node = SimpleNamespace(address="tcp://127.0.0.1:8786")
    address = _facts.listen(30.0, None, dask_worker=node)
    assert address.startswith("tcp://127.0.0.1:")
    assert not address.endswith(":8786")
    assert asyncio.run(_facts.knock([address], [address], 5.0)) == ([], [])


def test_a_worker_knocks_at_all_addresses_at_once_and_its_event_loop_goes_on(monkeypatch):
    meet = threading.Barrier(4, timeout=30.0)  # for all four, at the same time

    def reach(addresses, seconds):
        meet.wait()
        return [address for address in addresses if "closed" in address]

    monkeypatch.setattr(_facts, "reach", reach)
    found = asyncio.run(_facts.knock(["a", "closed b"], ["closed c", "d"], 5.0))
    assert found == (["closed b"], ["closed c"])


def test_facts_are_gathered_beside_the_event_loop(monkeypatch):
    monkeypatch.setattr(_facts, "gather", threading.current_thread)
    assert asyncio.run(_facts.gather_there()) is not threading.current_thread()


def test_an_address_that_the_machine_does_not_have_cannot_be_listened_on():
    node = SimpleNamespace(address="tcp://192.0.2.1:8786")  # reserved for documentation
    assert _facts.listen(1.0, None, dask_scheduler=node).startswith("error: ")
    assert _facts.listen(1.0, (36000, 36009), dask_scheduler=node).startswith("error: ")


def test_a_process_listens_in_the_range_of_the_setting_on_a_port_that_is_free():
    node = SimpleNamespace(address="tcp://192.0.2.1:8786")
    found = [_facts.listen(30.0, (36000, 36999), "127.0.0.1", dask_worker=node) for _ in range(3)]
    ports = [int(address.removeprefix("tcp://127.0.0.1:")) for address in found]
    assert len(set(ports)) == 3
    assert all(36000 <= port <= 36999 for port in ports)


def test_a_name_server_that_does_not_answer_is_awaited_for_three_seconds_only(monkeypatch):
    answered, awaited = threading.Event(), []
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: answered.wait())
    monkeypatch.setattr(threading.Thread, "join", lambda self, limit=None: awaited.append(limit))
    assert _facts.gather()["lookup_seconds"] >= 0.0
    assert awaited == [3.0]
    answered.set()
