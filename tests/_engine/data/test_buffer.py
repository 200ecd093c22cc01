"""Rows on their way from a DataLoader to batches."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
from torch.utils.data import TensorDataset

from accelerando._engine.data.buffer import RowBuffer
from accelerando._engine.data.feed import choose_feed
from accelerando.exceptions import UnsupportedError


def test_a_buffer_skips_more_than_it_reads_at_a_time():
    buffer = RowBuffer(iter([torch.arange(3000), torch.arange(3000, 3005)]), None)
    assert sum(rows for rows, _ in buffer.discard(3001)) == 3001
    assert buffer.n_rows == 4
    assert buffer.first(3).tolist() == [3001, 3002, 3003]
    assert buffer.release(2).tolist() == [3001, 3002]
    assert [taken.tolist() for _, taken in buffer.discard(100)] == [[3003, 3004]]
    assert buffer.n_rows == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"generator": torch.Generator()}, "random_state decides the order"),
        ({"num_workers": 1, "in_order": False}, "no run could be repeated"),
        ({"batch_sampler": [[0]]}, "no batch-size policy can"),
    ],
)
def test_arguments_that_cannot_be_honored_are_refused(options, says):
    data = TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(UnsupportedError, match=says):
        choose_feed(None, data, options)


PARENT = """
    import os, time
    from torch.utils.data import Dataset
    from accelerando._engine.data.loader import LoaderFeed

    class Large(Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, row):
            return b"x" * 1_000_000, row

    def init(number):
        print(os.getpid(), flush=True)

    if __name__ == "__main__":
        options = {"num_workers": 2, "collate_fn": list, "worker_init_fn": init}
        feed = LoaderFeed(Large(), options, chunk=4)
        feed.epoch(0, 0, 0).take(1)
        print("ready", flush=True)
        time.sleep(1000)
"""


def test_worker_processes_end_with_a_parent_that_is_killed(tmp_path):
    """They have more to deliver than a pipe holds, and nobody takes it."""
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        lines = [parent.stdout.readline().strip() for _ in range(3)]
        parent.kill()
    children = [int(line) for line in lines if line != "ready"]
    assert len(children) == 2
    while any(psutil.pid_exists(n) and not is_zombie(n) for n in children):
        time.sleep(0.01)


def is_zombie(number):
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
