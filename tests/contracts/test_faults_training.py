"""Checkpoints under a fault at every change of a file, and after a power cut at every moment.

What was acknowledged (a checkpoint that was awaited without a warning) is there afterwards; nothing
is half a state; and the run can go on writing.
"""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

from accelerando import NeuralNetRegressor
from accelerando._engine import journal
from accelerando._engine.checkpoint_folder import CheckpointWriter, newest
from accelerando._folder import open_folder
from accelerando.testing import DiskFault, PowerCut, every_fault
from tests._engine.test_checkpoint_folder import check_whole, save, update_of, writer_of
from tests._engine.test_journal import Run

# The thread that writes is killed, too; Python reports it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Records are sealed in every third checkpoint, so that there are both kinds of files."""
    monkeypatch.setattr(journal, "ROWS_PER_FILE", 10)


def three_checkpoints(folder, acknowledge):
    """Write three checkpoints; acknowledge each update that is on disk."""
    writer, run = writer_of(folder, keep=1), Run()
    for number in range(3):
        save(writer, run, best=number == 0)
        n_problems = len(PROBLEMS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first problem warns, and all are logged
            writer.wait()
        if len(PROBLEMS) == n_problems:
            acknowledge(run.n_updates)


PROBLEMS = []


@pytest.fixture(autouse=True)
def problems(monkeypatch):
    """Messages about checkpoints that could not be written."""
    PROBLEMS.clear()
    monkeypatch.setattr(
        logging.getLogger("accelerando"), "info", lambda *args: PROBLEMS.append(args)
    )


def latest(folder):
    """The update of the newest checkpoint, which is whole; 0 if there is none."""
    found = newest(open_folder(folder))
    if found is None:
        return 0
    check_whole(found)
    return update_of(found)


@pytest.mark.parametrize("kind", ["error", "full", "kill"])
def test_a_disk_that_fails_loses_no_checkpoint_that_was_awaited(tmp_path, kind):
    reached = set()
    for number, fault in enumerate(every_fault(lambda n: DiskFault(tmp_path, n, kind))):
        folder, acknowledged = tmp_path / str(number), [0]
        if kind == "kill":  # the thread dies silently: nothing is known to be on disk
            with fault:
                three_checkpoints(folder, lambda update: None)
        else:
            with fault:
                try:
                    three_checkpoints(folder, acknowledged.append)
                except OSError:
                    assert "directory" in fault.change.kind, "that of the run"
        reached.add(fault.change.kind if fault.happened else "none")
        assert latest(folder) >= acknowledged[-1]
        # Another process continues there as if nothing had happened.
        writer, run = CheckpointWriter(folder, keep=1, continues=None), Run()
        save(writer, run)
        writer.wait()
        assert latest(folder) == run.n_updates
    assert reached >= {"create", "write", "flush", "rename", "flush directory", "remove", "none"}


def test_after_a_power_cut_the_awaited_checkpoint_is_there_and_whole(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    with PowerCut(folder) as power:
        three_checkpoints(folder / "run", power.acknowledge)
    seen = set()
    for remains in power.remains(tmp_path / "left"):
        found = latest(remains.folder / "run")
        assert found >= max(remains.acknowledged, default=0), remains.after
        seen.add(found)
    assert seen == {0, 4, 8, 12}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)


def net_of(epochs, **params):
    return NeuralNetRegressor(
        Net, max_epochs=epochs, batch_size=60, lr=0.1, random_state=0, verbose=0, **params
    )


def net_after(line, epochs, **params):
    return net_of(epochs, **params).fit(*line)


def weights(net):
    return [parameter.detach().clone() for parameter in net.module_.parameters()]


def same(one, other):
    return all(map(torch.equal, one, other))


def test_a_state_that_is_saved_over_another_is_the_old_or_the_new_one(line, tmp_path):
    old, new = net_after(line, 1), net_after(line, 2)
    folder = tmp_path / "disk"
    folder.mkdir()
    old.save_state(folder / "state")
    with PowerCut(folder) as power:
        new.save_state(folder / "state")
        power.acknowledge("new")
    seen = set()
    for remains in power.remains(tmp_path / "left"):
        found = net_of(2).load_state(remains.folder / "state")
        is_new = same(weights(found), weights(new))
        assert is_new or (not remains.acknowledged and same(weights(found), weights(old)))
        seen.add(is_new)
    assert seen == {True, False}
    for kind in ("error", "full", "kill"):
        for fault in every_fault(lambda n, kind=kind: DiskFault(folder, n, kind)):
            failed = False
            with fault:
                try:
                    old.save_state(folder / "state")
                except OSError:
                    failed = True
            assert failed == (fault.happened and kind != "kill" and fails(fault, kind))
            found = net_of(2).load_state(folder / "state")
            assert same(weights(found), weights(old)) or fault.happened
            new.save_state(folder / "state")


def fails(fault, kind):
    """A full disk still flushes, renames and removes."""
    return kind == "error" or fault.change.kind in ("create", "write")


def test_a_killed_run_resumes_to_the_same_parameters_wherever_it_was_killed(line, tmp_path):
    expected = weights(net_after(line, 2))
    for number, fault in enumerate(every_fault(lambda n: DiskFault(tmp_path, n, "kill"))):
        folder = tmp_path / f"run-{number}"
        with fault:
            net_after(line, 2, checkpoint=folder)
        again = net_after(line, 2, checkpoint=folder)  # the same script, started again
        assert same(weights(again), expected), fault.change
