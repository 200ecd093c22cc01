"""The average of the weights: its formula, what is averaged, and when it is shown."""

import pickle
import threading

import pytest
import torch
from torch import nn

from accelerando._engine.ema import WeightAverage
from accelerando._engine.model import Components
from accelerando._engine.state import TrainState
from accelerando.exceptions import StateError


def components_of(module, criterion=None):
    return Components({"module": module}, {} if criterion is None else {"criterion": criterion})


def set_to(tensor, value):
    with torch.no_grad():
        tensor.fill_(value)


def averaged_over(module, values, decay=0.9, average=None):
    average = WeightAverage(decay) if average is None else average
    for value in values:
        for parameter in module.parameters():
            set_to(parameter, value)
        average.update(components_of(module))
    return average


def shown(average, module, read=lambda module: module.weight.detach().flatten()[0].item()):
    with average.shown(components_of(module)):
        return read(module)


@pytest.mark.parametrize("decay", [1e-6, 0.5, 0.9, 0.999, 1 - 1e-12])
def test_the_average_weighs_the_iterates_by_powers_of_the_decay(decay):
    values = [3.0, -1.0, 4.0, 1.0, -5.0]
    module = nn.Linear(2, 1).double()
    average = averaged_over(module, values, decay)
    weights = torch.tensor([decay ** (4 - n) for n in range(5)], dtype=torch.float64)
    expected = (weights * torch.tensor(values)).sum() / weights.sum()
    # 1 - d ** k loses digits next to 1, a relative error of the weights of 1e-4 at most
    tolerance = 1e-3 if decay > 0.9999 else 1e-12
    assert shown(average, module) == pytest.approx(expected.item(), rel=tolerance)
    assert module.weight[0, 0].item() == -5.0


def test_the_first_average_is_the_weight_after_the_first_update():
    module = nn.Linear(3, 1)
    average = WeightAverage(0.999)
    average.update(components_of(module))
    assert torch.equal(average.tensors["module.weight"], module.weight)


def test_modules_and_criteria_have_names_of_their_own():
    module, criterion = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    average = WeightAverage(0.9)
    average.update(components_of(module, criterion))
    assert list(average.tensors) == ["module.weight", "criterion.weight"]


def test_a_criterion_that_is_no_module_is_left_out():
    average = WeightAverage(0.9)
    average.update(components_of(nn.Linear(1, 1), nn.functional.mse_loss))
    assert list(average.tensors) == ["module.weight", "module.bias"]


def test_running_statistics_are_averaged_and_other_buffers_are_not():
    norm = nn.BatchNorm1d(2)
    norm.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    average = WeightAverage(0.5)
    for value in (1.0, 4.0):
        set_to(norm.running_mean, value)
        norm.num_batches_tracked.fill_(int(value))
        average.update(components_of(norm))
    names = ["weight", "bias", "running_mean", "running_var"]
    assert list(average.tensors) == [f"module.{name}" for name in names]
    set_to(norm.mask, 7.0)
    with average.shown(components_of(norm)):
        assert norm.running_mean.tolist() == [3.0, 3.0]
        assert norm.num_batches_tracked.item() == 4
        assert norm.mask.tolist() == [7.0, 7.0]
    assert norm.running_mean.tolist() == [4.0, 4.0]


def test_integers_and_frozen_infinities_are_those_of_the_model():
    module = nn.Linear(1, 1, bias=False)
    module.codes = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
    module.mask = nn.Parameter(torch.tensor([0.0, -torch.inf]), requires_grad=False)
    average = WeightAverage(0.9)
    for _ in range(2):
        average.update(components_of(module))
    assert list(average.tensors) == ["module.weight"]


def test_a_parameter_that_is_frozen_goes_on():
    module = nn.Linear(1, 1, bias=False)
    average = averaged_over(module, [1.0], 0.5)
    module.weight.requires_grad_(False)
    average.begin_epoch()
    averaged_over(module, [4.0], average=average)
    assert shown(average, module) == 3.0


def test_tied_weights_are_averaged_once():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    average = averaged_over(module, [1.0, 4.0], 0.5)
    assert list(average.tensors) == ["module.0.weight"]
    with average.shown(components_of(module)):
        assert module[1].weight is module[0].weight
        assert module[1].weight[0, 0].item() == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_averaged_in_single_precision(dtype):
    module = nn.Linear(1, 1, bias=False).to(dtype)
    average = averaged_over(module, [1.0] + [1.0078125] * 2000, 0.999)
    assert average.tensors["module.weight"].dtype == torch.float32
    # In bfloat16 a step of a thousandth of the distance would change nothing.
    assert shown(average, module) == pytest.approx(1.0078125, abs=2e-3)
    assert shown(average, module, lambda module: module.weight.dtype) == dtype


def test_complex_weights_are_averaged():
    module = nn.Linear(1, 1, bias=False, dtype=torch.complex64)
    average = averaged_over(module, [1.0, 4.0], 0.5)
    assert shown(average, module) == 3 + 0j


def test_what_is_replaced_goes_on_if_it_has_the_same_shape():
    module = nn.Linear(1, 1, bias=False)
    average = averaged_over(module, [1.0], 0.5)
    module.weight = nn.Parameter(torch.zeros(1, 1))
    average.begin_epoch()
    averaged_over(module, [4.0], average=average)
    assert shown(average, module) == 3.0
    module.weight = nn.Parameter(torch.zeros(2, 1))
    assert shown(average, module) == 0.0  # nothing is known about it yet
    average.begin_epoch()
    averaged_over(module, [7.0], average=average)
    assert shown(average, module) == 7.0


def test_the_weights_come_back_after_an_error():
    module = nn.Linear(1, 1)
    average = averaged_over(module, [1.0, 4.0], 0.5)
    memory = module.weight.data_ptr()
    with pytest.raises(KeyError), average.shown(components_of(module)):
        raise KeyError
    assert module.weight.item() == 4.0
    assert module.weight.data_ptr() == memory


def test_several_threads_may_look_at_the_average():
    module = nn.Linear(1, 1)
    average = averaged_over(module, [1.0, 4.0], 0.5)
    inside, leave, seen = threading.Event(), threading.Event(), []

    def look():
        with average.shown(components_of(module)):
            inside.set()
            leave.wait(10)
            seen.append(module.weight.item())

    thread = threading.Thread(target=look)
    thread.start()
    inside.wait(10)
    assert shown(average, module) == 3.0  # and leaves before the other
    leave.set()
    thread.join()
    assert seen == [3.0]
    assert module.weight.item() == 4.0


def test_nothing_is_saved_while_the_average_is_shown():
    module = nn.Linear(1, 1)
    average = averaged_over(module, [1.0, 4.0])
    with (
        average.shown(components_of(module)),
        pytest.raises(StateError, match=r"^Saving needs .* outside\.$"),
    ):
        average.state_dict()


def test_a_restart_forgets_everything():
    module = nn.Linear(1, 1)
    average = averaged_over(module, [1.0, 4.0], 0.5)
    average.restart()
    assert shown(average, module) == 4.0
    averaged_over(module, [2.0], average=average)
    assert (average.updates, shown(average, module)) == (1, 2.0)


def test_the_state_holds_the_average():
    module = nn.Linear(1, 1)
    state = TrainState(ema=averaged_over(module, [1.0, 4.0], 0.7))
    other = pickle.loads(pickle.dumps(state))
    assert (other.ema.decay, other.ema.updates) == (0.7, 2)
    assert other.ema.tensors["module.weight"] == state.ema.tensors["module.weight"]
    averaged_over(module, [9.0], average=other.ema)
    averaged_over(module, [9.0], average=state.ema)
    assert shown(other.ema, module) == shown(state.ema, module)


def test_a_state_without_an_average_replaces_one_that_has_it():
    state = TrainState(ema=WeightAverage(0.5))
    state.load_state_dict(TrainState().state_dict())
    assert state.ema is None
