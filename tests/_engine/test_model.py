"""What is trained: components by name, and a model without an estimator."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from accelerando._engine.model import (
    Components,
    python_numbers,
)
from accelerando.exceptions import StateError
from tests._engine.fits import data, plain_fit, plain_model, train, weights_of
from tests._engine.plain import PlainModel


class Scaled(nn.Module):
    """A criterion with a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, y_pred, y):
        self.seen += 1
        return (y_pred * self.scale - y).square().mean()


# -- components -----------------------------------------------------------------------------------


def test_a_parameter_that_two_modules_share_is_listed_once():
    shared = nn.Linear(2, 2)
    components = Components({"a": shared, "b": nn.Sequential(shared)}, {"loss": Scaled()})
    names = [name for name, _ in components.named_parameters()]
    assert names == ["weight", "bias", "scale"]


def test_a_mebibyte_of_parameters_is_large():
    def with_floats(number):
        module = nn.Module()
        module.weight = nn.Parameter(torch.zeros(number))
        return Components({"module": module, "again": module})

    assert with_floats(2**18).is_large
    assert not with_floats(2**18 - 1).is_large


def test_settings_of_parameter_groups_are_plain_values():
    parts = [nn.Linear(2, 2) for _ in range(2)]
    made = [torch.optim.Adam(part.parameters(), lr=0.25 / n) for n, part in enumerate(parts, 1)]
    made[0].param_groups[0]["scratch"] = torch.zeros(3)
    one, other = (Components(optimizers={"optimizer": optimizer}) for optimizer in made)
    ((settings,),) = one.group_settings()
    assert (settings["lr"], settings["betas"]) == (0.25, (0.9, 0.999))
    assert not {"params", "scratch"} & set(settings)
    other.set_groups(json.loads(json.dumps([[settings]])))
    assert other.group_settings() == [[settings]]  # a tuple is a tuple again


def test_buffers_of_modules_and_criteria_are_listed_once():
    norm = nn.BatchNorm1d(2)
    components = Components({"a": norm, "b": norm}, {"loss": Scaled()})
    assert len(components.buffers()) == 3 + 1


def test_a_criterion_may_be_a_function():
    components = Components({"a": nn.Linear(1, 1)}, {"loss": nn.functional.mse_loss})
    assert len(components.named_parameters()) == 2
    assert components.buffers() == []
    assert components.state_dict()["modules"].keys() == {"a"}


def components_of(seed, lr=0.1, **options):
    torch.manual_seed(seed)
    module, criterion = nn.Linear(3, 1), Scaled()
    parameters = [*module.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, **options)
    nn.functional.mse_loss(criterion.scale * module(torch.ones(2, 3)), torch.zeros(2, 1)).backward()
    optimizer.step()
    return Components({"module": module}, {"criterion": criterion}, {"optimizer": optimizer})


def test_everything_is_saved_and_loaded():
    one, other = components_of(0, lr=0.25), components_of(1)
    one.criteria["criterion"].seen += 5
    other.load_state_dict(one.state_dict(), one.frozen(), origin="here")
    for (_, mine), (_, loaded) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        assert torch.equal(mine, loaded)
    assert other.criteria["criterion"].seen == 5
    assert other.optimizers["optimizer"].param_groups[0]["lr"] == 0.25
    mine, loaded = (c.optimizers["optimizer"].state_dict()["state"] for c in (one, other))
    assert all(torch.equal(mine[k]["momentum_buffer"], loaded[k]["momentum_buffer"]) for k in mine)


def test_what_is_frozen_is_saved_and_loaded():
    one, other = components_of(0), components_of(1)
    one.modules["module"].bias.requires_grad_(False)
    other.modules["module"].weight.requires_grad_(False)
    assert one.frozen() == [["module", "bias"]]
    other.load_state_dict(one.state_dict(), one.frozen(), origin="here")
    assert other.frozen() == [["module", "bias"]], "and what is not frozen there is trained here"


def test_a_file_that_does_not_know_what_is_frozen_leaves_it():
    one, other = components_of(0), components_of(1)
    other.modules["module"].bias.requires_grad_(False)
    other.load_state_dict(one.state_dict(), None, origin="here")
    assert other.frozen() == [["module", "bias"]]


@pytest.mark.parametrize(
    ("part", "name", "other"),
    [
        ("modules", "module", nn.Linear(4, 1)),
        ("modules", "second", nn.Linear(1, 1)),
        ("optimizers", "optimizer", torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)),
    ],
)
def test_another_model_is_refused_by_name(part, name, other):
    content = components_of(0).state_dict()
    components = components_of(1)
    getattr(components, part)[name] = other
    with pytest.raises(
        StateError, match=f"file.pt was saved from an estimator with another {name}"
    ):
        components.load_state_dict(content, None, origin="file.pt")


def test_numbers_of_numpy_become_those_of_python():
    content = {"lr": np.float64(0.5), "betas": (np.float32(0.5), 0.999), "groups": [np.int64(3)]}
    plain = python_numbers(content)
    assert plain == {"lr": 0.5, "betas": (0.5, 0.999), "groups": [3]}
    assert [type(plain["lr"]), type(plain["betas"][0]), type(plain["groups"][0])] == [
        float, float, int,
    ]  # fmt: skip
    tensor = torch.ones(2)
    assert python_numbers({"w": tensor})["w"] is tensor


def test_optimizers_with_numbers_of_numpy_can_be_saved():
    state = components_of(0, lr=np.float64(0.1)).state_dict()
    assert type(state["optimizers"]["optimizer"]["param_groups"][0]["lr"]) is float


# -- the plain model ------------------------------------------------------------------------------


def test_a_plain_model_trains_as_a_loop_by_hand():
    X, y = data(48)
    fit = train(plain_fit(plain_model(momentum=0.9), (X, y), batch_size=16, until=3))
    model = plain_model(momentum=0.9)
    for epoch in range(3):
        order = fit.feed.order(0, epoch, 48)
        for start in range(0, 48, 16):
            rows = torch.from_numpy(order[start : start + 16])
            model.optimizers[0].zero_grad()
            nn.functional.mse_loss(model.module(X[rows]), y[rows]).backward()
            model.optimizers[0].step()
    expected = torch.cat([p.detach().flatten() for p in model.module.parameters()])
    assert torch.equal(weights_of(fit), expected)


def test_the_parameters_of_a_criterion_are_learned_too():
    criterion = Scaled()
    module = nn.Linear(3, 1)
    parameters = [*module.parameters(), *criterion.parameters()]
    model = PlainModel(module, criterion, torch.optim.SGD(parameters, lr=0.05))
    train(plain_fit(model))
    assert criterion.scale.item() != 1.0
    assert len(model.parameters) == 3


def test_modes_reach_the_module_and_the_criterion():
    model = plain_model(criterion=Scaled())
    model.train(False)
    assert not model.module.training
    assert not model.criterion.training
    model.train(True)
    assert model.criterion.training
    plain_model(criterion=nn.functional.mse_loss).train(False)  # a function has no mode


def test_a_dictionary_holds_arguments_of_forward():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, left, right):
            return left - self.weight * right

    model = plain_model(Two())
    X = {"right": torch.tensor([1.0]), "left": torch.tensor([5.0])}
    assert model.forward(X, model.module).item() == 4.0
    assert model.forward(torch.tensor([2.0]), lambda x: x * 3).item() == 6.0, "DDP stands in"


def test_a_refreshed_model_sees_replaced_parameters():
    model = plain_model()
    model.module.weight = nn.Parameter(torch.zeros(1, 3, dtype=torch.float64))
    assert model.parameters[0] is not model.module.weight
    model.refresh()
    assert model.parameters[0] is model.module.weight
    assert model.largest == torch.finfo(torch.float32).max, "that of the narrowest dtype"


def test_an_optimizer_with_a_closure_is_recognized():
    assert plain_model(optimizer=torch.optim.LBFGS, lr=1.0).needs_closure
    assert not plain_model().needs_closure


def test_lbfgs_trains_a_plain_model():
    X, y = data(48)
    model = plain_model(optimizer=torch.optim.LBFGS, lr=1.0)
    train(plain_fit(model, (X, y), batch_size=48, until=3))
    assert model.module.weight.flatten().tolist() == pytest.approx([1.0, -2.0, 0.5], abs=1e-3)


def test_a_plain_model_has_no_step_of_a_subclass():
    with pytest.raises(AssertionError):
        plain_model().custom_step(data())
