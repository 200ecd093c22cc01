"""State files: whole or not at all, of this version or the one before, and never code."""

from __future__ import annotations

import json
import math
import os

import pytest
import torch

from accelerando import _files
from accelerando._decisions import Memories, Settings
from accelerando._engine import checkpoint
from accelerando._engine.position import Part
from accelerando._engine.state import TrainState
from accelerando.exceptions import StateError

CONTENT = {
    "json": json.dumps({"position": {"epoch": 1, "until": 2}}),
    "tensors": {"a": torch.ones(2)},
}


def version_4(**run):
    """Return what version 4 wrote: a run with a policy, a monitor and averaging."""
    plain = {
        "run": {
            "seed": 3, "seeded": True, "epoch": 1, "cursor": 2, "update": 3, "examples": 4,
            "until": 5, "n_examples": 6, "epoch_open": True, "last_rows": 7, "last_loss": 0.5,
            "last_grad_norm": None, "batch_size": 8, "lr_scale": 0.25, "policy_state": {"p": 1},
            "control": {"policies": [{"s": 2}], "monitors": [{"m": 3}], "signals": {"noise": 4.0},
                        "wish": {"batch_size": 9.0, "scales": [0.5]}},
            "sync": {"since": 1, "count": 2, "state": {"period": 3}}, "seconds": 1.5, **run,
        },
        "micro_batch": {"rows": 64, "seconds": {}},
        "policy": "RadaDamp(initial=8)", "control": ["LossTrend()"], "sync": "PeriodicAveraging()",
        "columns": ["update", "synchronisations", "noise"],
        "estimator": "NeuralNet", "history": [{"epoch": 1}], "classes": [0, 1],
        "callbacks": {"c": 1},
    }  # fmt: skip
    return {
        "format": checkpoint.FORMAT,
        "version": 4,
        "json": json.dumps(plain),
        "modules": {"module": {"w": torch.ones(1)}},
        "optimizers": {"optimizer": {}},
        "updates": torch.ones(1, 3),
        "epochs": torch.zeros(0, 6),
        "rng": [torch.zeros(2)],
        "ranks": {"ranks": [[torch.ones(1)]], "memories": [[]], "centre": [], "pace": []},
        "callback_tensors": {"best": torch.ones(1)},
    }


# -- files ----------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path):
    checkpoint.write(tmp_path / "state", CONTENT)
    content = checkpoint.read(str(tmp_path / "state"))
    assert content["json"] == CONTENT["json"]
    assert torch.equal(content["tensors"]["a"], torch.ones(2))
    assert content.keys() == CONTENT.keys()


def test_a_file_is_complete_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """In this order, or a power cut could leave a name without content."""
    done = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(number):
        kind = "directory" if os.path.isdir(f"/proc/self/fd/{number}") else "file"
        done.append(f"fsync {kind}")
        fsync(number)

    def note_replace(source, target):
        assert torch.load(source, weights_only=True)["json"] == CONTENT["json"]
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(_files.os, "fsync", note_fsync)
    monkeypatch.setattr(_files.os, "replace", note_replace)
    checkpoint.write(tmp_path / "state", CONTENT)
    assert done == ["fsync file", "rename", "fsync directory"]


def test_a_write_that_fails_leaves_the_file_of_before(tmp_path, monkeypatch):
    path = tmp_path / "state"
    checkpoint.write(path, CONTENT)
    before = path.read_bytes()

    def full_disk(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(path, CONTENT)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "changed", "one bit", "no checksum"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, damage):
    path = tmp_path / "state"
    checkpoint.write(path, CONTENT)
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = {
        "empty": b"",
        "text": b"hello",
        "cut": content[:middle],
        "changed": content[:100] + b"\xff" * 200 + content[300:],
        "one bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "no checksum": content[:-40],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(StateError, match=rf"{path} is (not a state that save_state wrote|damaged)"):
        checkpoint.read(path)


@pytest.mark.parametrize("content", [[1, 2], {"module": {}}, {"format": "other", "version": 5}])
def test_other_files_of_pytorch_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "params")
    with pytest.raises(StateError, match="Files of save_params are read with load_params"):
        checkpoint.read(tmp_path / "params")


@pytest.mark.parametrize("version", [3, 7, 99, None])
def test_an_unknown_version_says_which_are_known(tmp_path, version):
    torch.save({"format": checkpoint.FORMAT, "version": version}, tmp_path / "state")
    with pytest.raises(StateError, match=f"version {version} .* reads the versions 4, 5, 6"):
        checkpoint.read(tmp_path / "state")


def test_a_file_without_a_version_or_content_is_refused(tmp_path):
    torch.save({"format": checkpoint.FORMAT}, tmp_path / "state")
    with pytest.raises(StateError, match="has version None"):
        checkpoint.read(tmp_path / "state")
    torch.save({"format": checkpoint.FORMAT, "version": 5}, tmp_path / "state")
    with pytest.raises(StateError, match="is damaged: 'json' is missing"):
        checkpoint.read(tmp_path / "state")


def test_no_file_is_no_damaged_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoint.read(tmp_path / "nowhere")


@pytest.mark.parametrize("read", ["file", "bytes"])
def test_reading_runs_no_code(tmp_path, read):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    evil = {"format": checkpoint.FORMAT, "version": 5, "json": Evil(), "tensors": {}}
    torch.save(evil, tmp_path / "evil")
    with pytest.raises(Exception, match=r"weights_only|Unsupported|not a state"):
        if read == "file":
            checkpoint.read(tmp_path / "evil")
        else:
            checkpoint.unpack((tmp_path / "evil").read_bytes())
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(("epoch", "until", "unfinished"), [(1, 2, True), (2, 2, False)])
def test_an_unfinished_run_has_epochs_left(epoch, until, unfinished):
    plain = {"position": {"epoch": epoch, "until": until}}
    assert checkpoint.is_unfinished({"json": json.dumps(plain), "tensors": {}}) is unfinished


def test_a_file_of_version_5_has_no_checksum(tmp_path):
    torch.save({"format": checkpoint.FORMAT, "version": 5, **CONTENT}, tmp_path / "state")
    assert checkpoint.read(tmp_path / "state")["json"] == CONTENT["json"]


def test_a_state_can_be_in_a_store_of_fsspec():
    checkpoint.write("memory://test-checkpoint/state", CONTENT)
    assert checkpoint.read("memory://test-checkpoint/state")["json"] == CONTENT["json"]


def test_what_is_sent_arrives_on_the_cpu():
    content = {"text": "a", "numbers": [1, 2.5], "tensor": torch.arange(3)}
    arrived = checkpoint.unpack(checkpoint.pack(content))
    assert arrived["text"] == "a"
    assert arrived["numbers"] == [1, 2.5]
    assert torch.equal(arrived["tensor"], content["tensor"])


# -- version 4 ------------------------------------------------------------------------------------


def loaded_from_version_4(tmp_path, **run):
    torch.save(version_4(**run), tmp_path / "old")
    content = checkpoint.read(tmp_path / "old")
    state = TrainState()
    parts = Part.ALL & ~Part.MODEL
    assert state.load_state_dict(content, parts=parts) == parts
    return state, content


def test_everything_in_version_4_has_its_place(tmp_path):
    state, content = loaded_from_version_4(tmp_path)
    assert (state.seed, state.seeded, state.seconds) == (3, True, 1.5)
    assert vars(state.position) == {
        "epoch": 1, "cursor": 2, "update": 3, "examples": 4, "until": 5, "n_examples": 6,
        "epoch_open": True,
    }  # fmt: skip
    assert state.last[:2] == (7, 0.5)
    assert math.isnan(state.last.grad_norm)
    assert (state.batch_size, state.lr_scale) == (8, 0.25)
    assert state.settings == Settings(batch_size=9.0, scales=(0.5,))
    assert state.memories == Memories(
        [{"p": 1}, {"s": 2}], [{"m": 3}], {"noise": 4.0}, {"period": 3}
    )
    assert (state.averaging.since, state.averaging.count) == (1, 2)
    assert state.micro_batch.rows == 64
    assert state.made_with == {
        "policy": "RadaDamp(initial=8)", "control": ["LossTrend()"], "sync": "PeriodicAveraging()",
    }  # fmt: skip
    assert len(state.replicas) == 1
    assert state.rng[0].tolist() == [0, 0]
    assert state.host.plain == {
        "estimator": "NeuralNet", "history": [{"epoch": 1}], "classes": [0, 1],
        "callbacks": {"c": 1},
    }  # fmt: skip
    assert state.host.tensors["best"].tolist() == [1.0]
    assert content["tensors"]["modules"]["module"]["w"].tolist() == [1.0]
    assert json.loads(content["json"])["frozen"] is None, "version 4 did not know what is frozen"


def test_the_former_column_of_averagings_is_found(tmp_path):
    _, content = loaded_from_version_4(tmp_path)
    assert json.loads(content["json"])["columns"] == ["update", "averagings", "noise"]


def test_a_run_of_version_4_without_monitors_and_averaging(tmp_path):
    state, _ = loaded_from_version_4(tmp_path, control={}, sync={}, last_loss=None)
    assert state.settings == Settings()
    assert state.memories == Memories([{"p": 1}])
    assert (state.averaging.since, state.averaging.count) == (0, 0)
    assert math.isnan(state.last.loss)


@pytest.mark.parametrize("name", ["NoiseScale", "NormTest"])
def test_a_policy_that_was_both_is_now_a_constant_size_and_a_standing_policy(name):
    policy = f"{name}(initial=16)"
    plain = {"policy": policy, "control": [policy], "sync": "AllReduce()"}
    made_with = checkpoint._made_with_of_version_4(plain)
    assert made_with == {"policy": "Constant(size=16)", "control": [policy], "sync": "AllReduce()"}
