"""Facts of a process, without accelerando and without PyTorch."""

import socket
import subprocess
import sys

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
