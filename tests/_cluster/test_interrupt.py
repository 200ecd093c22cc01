"""Ctrl-C in a real terminal and in a real Jupyter kernel: both reach the workers, too."""

import multiprocessing
import os
import pty
import re
import subprocess
import sys
import textwrap
import time

from jupyter_client.manager import KernelManager
from skorch.callbacks import Callback

from tests._cluster.helpers import Paced

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}


def is_worker():
    """Return False in the driver. It is no attribute of a module: ranks get those of the driver."""
    return multiprocessing.current_process().name != "MainProcess"


class Announcing(Paced):
    """Says when a rank starts, and when it evaluates; then there is time to press Ctrl-C."""

    def __init__(self, moment="", **kwargs):
        super().__init__(**kwargs)
        self.moment = moment
        if moment == "starting" and is_worker():
            announce()

    def forward(self, x):
        if self.moment == "validation" and is_worker() and not self.training:
            announce()
        return super().forward(x)


class Between(Callback):
    """Says that an epoch has ended."""

    def on_epoch_end(self, net, **kwargs):
        announce()


def announce():
    print("PRESS", flush=True)
    time.sleep(1.0)


SCRIPT = """
    import os, sys, threading
    os.open(os.ttyname(0), os.O_RDWR)  # the terminal of this session: Ctrl-C is for its processes

    import numpy as np
    from distributed import Client
    from tests._cluster.helpers import cluster_of, when
    from tests._cluster.test_interrupt import Announcing, Between
    from tests.nets import classifier
    from tests.start_warm import start_workers_warm

    if __name__ == "__main__":
        start_workers_warm()
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(200, 64)).astype("float32"), np.arange(200) % 10
        with cluster_of(2) as cluster, Client(cluster) as client:
            before = sorted(client.run(os.getpid).values())
            for moment in ("training", "starting", "validation", "between"):
                net = classifier(
                    Announcing, module__seconds=0.01, module__moment=moment, client=client,
                    batch_size=32, examples_per_worker=16, max_epochs=3,
                    callbacks=[Between()] if moment == "between" else None,
                )
                if moment == "training":
                    when(net, 3, lambda: print("PRESS", flush=True))
                net.fit(X, y)
                at, interrupted = net.position_.update, net._state_.interrupted
                net.set_params(module__moment="", callbacks=None)
                if moment == "between":
                    net.callbacks_ = [c for c in net.callbacks_ if not isinstance(c[1], Between)]
                net.module_.moment = ""
                net.partial_fit(X, y)
                same = sorted(client.run(os.getpid).values()) == before
                print(f"ENDED {moment} at={at} {interrupted=} {same=} "
                      f"then={net.position_.update}", flush=True)
"""


def test_ctrl_c_in_a_terminal(tmp_path):
    """A real Ctrl-C, while ranks train, start, evaluate, and between two epochs."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    os.close(inside)
    output, pressed = "", 0
    try:
        while True:
            try:
                output += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            ended = output.count("ENDED")
            # Both ranks may announce the same moment.
            if output.rpartition("ENDED")[2].count("PRESS") and pressed == ended:
                os.write(terminal, b"\x03")
                pressed += 1
        assert process.wait(60) == 0, output
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    rows = dict(re.findall(r"ENDED (\w+) (.*then=\d+)", output))
    assert set(rows) == {"training", "starting", "validation", "between"}, output
    for moment, row in rows.items():
        assert "interrupted=True same=True then=15" in row, (moment, output)
    assert 3 <= int(re.findall(r"at=(\d+)", rows["training"])[0]) < 15
    assert "at=0 " in rows["starting"]
    assert "at=5 " in rows["validation"]
    assert "at=5 " in rows["between"]
    assert "Traceback" not in output


CELL = """
    import os
    import numpy as np
    from distributed import Client
    from tests._cluster.helpers import Paced, cluster_of, when
    from tests.nets import classifier
    from tests.start_warm import start_workers_warm

    start_workers_warm()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 64)).astype("float32"), np.arange(200) % 10
    cluster = cluster_of(2)
    client = Client(cluster)
    before = sorted(client.run(os.getpid).values())
    net = classifier(Paced, module__seconds=0.02, client=client, batch_size=32,
                     examples_per_worker=16, max_epochs=10)
    when(net, 3, lambda: print("PRESS", flush=True))
    net.fit(X, y)
    at = net.position_.update
"""
NEXT = """
    net.set_params(verbose=1).partial_fit(X, y)
    same = sorted(client.run(os.getpid).values()) == before
    print(f"ENDED {3 <= at < 50=} {net.position_.update=} {same=}")
    client.close()
    cluster.close()
"""


def test_the_stop_button_and_the_live_line_of_a_notebook():
    manager = KernelManager()
    manager.start_kernel(env=ENVIRONMENT)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)

        def run(code):
            """Return the output of a cell, and what its display showed one after the other.

            The kernel is interrupted when the cell asks for it.
            """
            asked = client.execute(textwrap.dedent(code))
            output, shown = "", []
            while True:
                message = client.get_iopub_msg(timeout=100)
                if message["parent_header"].get("msg_id") not in (asked, None):
                    continue
                kind, content = message["msg_type"], message["content"]
                if kind == "stream":
                    output += content["text"]
                    if "PRESS" in content["text"]:
                        manager.interrupt_kernel()
                elif kind in ("display_data", "update_display_data"):
                    if "<table" not in content["data"].get("text/html", ""):  # of the epochs
                        shown.append(content["data"]["text/plain"])
                elif kind == "error":
                    output += "\n".join(content["traceback"])
                elif kind == "status" and content["execution_state"] == "idle":
                    return output, shown

        (first, nothing), (then, shown) = run(CELL), run(NEXT)
        assert "3 <= at < 50=True net.position_.update=50 same=True" in then, first + then
        assert "Traceback" not in first + then
        assert nothing == [], "verbose=0"
        assert shown[0] == shown[-1] == "", "the line is removed at the end"
        lines = shown[1:-1]
        assert lines
        assert all(re.match(r"epoch \d+/10", line) and "2 ranks" in line for line in lines), lines
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
