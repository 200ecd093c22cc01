"""Replicas of one process: who is active, what is saved, and who has changed the model."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.model import Components
from tests._engine.comm.ranks import MLP, data_of, model_of


def step(model, X, y):
    model.module.zero_grad()
    model.loss(model.module(X), y, X).backward()
    model.step(None)


@pytest.fixture
def model():
    return model_of(norm=True, momentum=0.9)


def test_a_step_changes_the_active_replica_only(model):
    replicas = ReplicaSet(model.components, here=3)
    shown = model.module.first.weight.detach().clone()
    memory = replicas.tensors[1][0].data_ptr()
    X, y = data_of(8)
    with replicas.active(1):
        assert model.module.first.weight.data_ptr() == memory  # no copy
        step(model, X, y)
    assert torch.equal(model.module.first.weight, shown)
    assert torch.equal(replicas.tensors[0][0], shown)
    assert torch.equal(replicas.tensors[2][0], shown)
    assert not torch.equal(replicas.tensors[1][0], shown)
    assert replicas.tensors[1][0].data_ptr() == memory


def test_optimizers_create_their_state_in_the_replica_that_steps(model):
    replicas = ReplicaSet(model.components, here=2)
    with replicas.active(1):
        step(model, *data_of(8))
        buffers = [model.optimizers[0].state[p]["momentum_buffer"] for p in model.parameters]
    assert not any(replicas.optimizer_state[0][0])
    kept = [memory["momentum_buffer"] for memory in replicas.optimizer_state[1][0]]
    assert all(a is b for a, b in zip(buffers, kept, strict=True))
    assert not model.optimizers[0].state  # shown is the state of the first replica


def test_a_buffer_that_a_module_replaces_is_kept():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen.data = self.seen + 1
            return x * self.weight

    module = Counting()
    components = Components({"module": module}, {}, {})
    replicas = ReplicaSet(components, here=2)
    with replicas.active(1):
        module(torch.ones(1))
        module(torch.ones(1))
    assert [float(tensors[1]) for tensors in replicas.tensors] == [0.0, 2.0]
    assert float(module.seen) == 0.0


def test_an_error_inside_leaves_the_shown_model_in_place(model):
    replicas = ReplicaSet(model.components, here=2)
    before = model.module.first.weight.data_ptr()
    with pytest.raises(RuntimeError, match="step"), replicas.active(1):
        raise RuntimeError("step")
    assert model.module.first.weight.data_ptr() == before


def test_own_steps_and_shown_averages_are_no_changes_by_others(model):
    replicas = ReplicaSet(model.components, here=2)
    assert replicas.fits(model.components, 2)
    with replicas.active(0):
        step(model, *data_of(8))
    replicas.mark()
    assert replicas.fits(model.components, 2)
    replicas.show(replicas.flatten()[0])
    replicas.set_all(replicas.flatten()[0])
    assert replicas.fits(model.components, 2)
    assert torch.equal(model.module.first.weight, replicas.tensors[1][0])
    replicas.reset_optimizers()
    replicas.mark()
    assert replicas.fits(model.components, 2)


def zero(model):
    with torch.no_grad():
        model.module.last.bias.zero_()


def load_optimizer(model):
    model.optimizers[0].load_state_dict(model.optimizers[0].state_dict())


def replace_parameter(model):
    model.module.last.bias = nn.Parameter(torch.zeros(3))


def add_optimizer(model):
    model.components.optimizers["other"] = torch.optim.SGD(model.parameters, lr=0.1)


@pytest.mark.parametrize("change", [zero, load_optimizer, replace_parameter, add_optimizer])
def test_changes_by_callbacks_are_noticed(model, change):
    replicas = ReplicaSet(model.components, here=2)
    change(model)
    assert not replicas.fits(model.components, 2)


def scale_data(model):
    model.module.first.weight.data.mul_(2)


def scale_numpy(model):
    values = model.module.first.weight.detach().numpy()
    values *= 2


def scale_momentum(model):
    for memory in model.optimizers[0].state.values():
        memory["momentum_buffer"].mul_(-1)


@pytest.mark.parametrize("change", [zero, scale_data, scale_numpy, scale_momentum])
def test_changes_that_have_no_version_are_noticed_at_the_end_of_an_epoch(model, change):
    replicas = ReplicaSet(model.components, here=2)
    with replicas.active(0):
        step(model, *data_of(8))
    replicas.mark()
    replicas.mark_content()
    assert replicas.fits(model.components, 2)
    replicas.show(replicas.flatten()[0])
    assert replicas.fits(model.components, 2)
    change(model)
    assert not replicas.fits(model.components, 2)


def test_another_number_of_replicas_does_not_fit(model):
    assert not ReplicaSet(model.components, here=2).fits(model.components, 3)
    saved = ReplicaSet.saved(ReplicaSet(model.components, here=2).state_dict())
    assert not saved.fits(model.components, 2)


def trained(model):
    replicas = ReplicaSet(model.components, here=3)
    replicas.start_center(moves=True)
    for number in range(3):
        with replicas.active(number):
            step(model, *data_of(8 + number))
    replicas.center[0] += 1.0
    replicas.center_memory[0] += 2.0
    return replicas


def test_saved_replicas_are_the_same_on_another_model(model):
    replicas = trained(model)
    buffer = io.BytesIO()
    torch.save(replicas.state_dict(), buffer)
    buffer.seek(0)
    saved = ReplicaSet.saved(torch.load(buffer, weights_only=True))
    assert not saved.bound
    assert len(saved) == 3

    other = model_of(norm=True, momentum=0.9, seed=1)
    restored = ReplicaSet(other.components, here=2)
    restored.restore(saved, first=1)
    for mine, theirs in zip(restored.tensors, replicas.tensors[1:], strict=True):
        assert all(map(torch.equal, mine, theirs))
    assert all(map(torch.equal, restored.center, replicas.center))
    assert all(map(torch.equal, restored.center_memory, replicas.center_memory))
    assert restored.fits(other.components, 2)
    # Both continue with the same momentum.
    for one, holder, number in ((replicas, model, 2), (restored, other, 1)):
        with one.active(number):
            step(holder, *data_of(20))
    assert all(map(torch.equal, restored.tensors[1], replicas.tensors[2]))


def test_saving_what_was_saved_loses_nothing(model):
    replicas = trained(model)
    again = ReplicaSet.saved(ReplicaSet.saved(replicas.state_dict()).state_dict())
    assert all(map(torch.equal, again.tensors[2], replicas.tensors[2]))
    center = replicas.flat.unflatten(replicas.center)
    assert all(map(torch.equal, again.center, center))


@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
def test_another_number_of_replicas_takes_over_all_memories(model, ranks):
    saved = ReplicaSet(model.components, here=3)
    for number, memory in enumerate(saved.memories):
        memory["w"] = torch.full((2,), 10.0**number)
        memory[f"w rows {number}:{number + 1}"] = torch.ones(1) if number else None
    found = []
    for first in range(ranks):  # as on ranks of a cluster, each with one replica
        replicas = ReplicaSet(model.components, here=1)
        replicas.inherit(saved, first, ranks)
        found += replicas.memories
    assert sum(memory["w"][0] for memory in found if "w" in memory) == 111.0
    rows = [name for memory in found for name in memory if name != "w"]
    assert sorted(rows) == ["w rows 1:2", "w rows 2:3"]
    assert torch.equal(saved.memories[0]["w"], torch.ones(2))


def test_numpy_numbers_are_saved_as_python_numbers(model):
    replicas = ReplicaSet(model.components, here=1)
    replicas.optimizer_state[0][0][0] = {"eta": np.float64(0.5), "sizes": (np.int64(2),)}
    content = replicas.state_dict()["optimizer_state"][0][0][0]
    assert content == {"eta": 0.5, "sizes": (2,)}
    assert type(content["eta"]) is float
    assert type(content["sizes"][0]) is int


def test_restored_tensors_have_the_layout_of_the_model():
    def conv(memory_format):
        module = nn.Conv2d(2, 3, 3).to(memory_format=memory_format)
        return module, Components({"module": module}, {}, {})

    _, plain = conv(torch.contiguous_format)
    module, last = conv(torch.channels_last)
    saved = ReplicaSet.saved(ReplicaSet(plain, here=1).state_dict())
    replicas = ReplicaSet(last, here=1)
    replicas.restore(saved)
    assert replicas.tensors[0][0].stride() == module.weight.stride()
    assert torch.equal(replicas.tensors[0][0], saved.tensors[0][0])


def test_a_parameter_that_two_parts_share_is_one():
    module, criterion = MLP(), nn.Module()
    criterion.weight = module.first.weight
    components = Components({"module": module}, {"criterion": criterion}, {})
    assert len(ReplicaSet(components, here=1).tensors[0]) == 4


def test_bytes_count_parameters_and_statistics_but_no_counters(model):
    numbers = (4 * 8 + 8) + 2 * 8 + (8 * 3 + 3) + 2 * 8
    assert ReplicaSet(model.components, here=2).n_bytes == 8 * numbers


def test_counters_are_shown_from_the_first_replica(model):
    replicas = ReplicaSet(model.components, here=2)
    for number, times in ((0, 2), (1, 5)):
        with replicas.active(number):
            for _ in range(times):
                model.module(data_of(8)[0])
    replicas.show(replicas.flatten()[1])
    assert int(model.module.norm.num_batches_tracked) == 2
