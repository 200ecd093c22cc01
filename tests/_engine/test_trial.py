"""Trial passes yield what training would, and everything that they change is put back."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from accelerando._engine.trial import (
    RaisesError,
    changed_by_forward,
    evaluate,
    in_double_precision,
    memories,
    nothing_changes,
)
from tests._engine.plain import PlainModel


class Forgetful(nn.Module):
    """A module that keeps something in every place where modules keep things."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.register_buffer("calls", torch.zeros(1))
        self.mean = torch.zeros(2)
        self.seen, self.last, self.table = [1], deque([2]), {"x": {"y": 3}}
        self.array, self.own = np.zeros(2), torch.Generator().manual_seed(1)
        self.numpy, self.python = np.random.default_rng(2), random.Random(3)

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean + x.mean().detach()
        self.seen.append(len(self.seen))
        self.last.append(5)
        self.table["x"]["y"] += 1
        self.array += 1
        self.fresh = True
        noise = torch.rand(2, generator=self.own) + self.numpy.random() + self.python.random()
        return self.norm(self.layer(x)) + noise + torch.rand(2) + random.random()


def model_of():
    torch.manual_seed(0)
    module = Forgetful().eval()
    return PlainModel(module, nn.MSELoss(), torch.optim.SGD(module.parameters(), lr=0.1))


def content(module):
    plain = [module.seen, module.last, module.table, module.array, module.mean, vars(module).keys()]
    state = {name: value.tolist() for name, value in module.state_dict().items()}
    generators = [
        module.own.get_state().tolist(),
        module.numpy.bit_generator.state,
        module.python.getstate(),
        torch.get_rng_state().tolist(),
        random.getstate(),
    ]
    return repr((plain, state, generators, module.training, module.norm.training))


def test_everything_is_as_before_and_in_the_same_objects():
    model = model_of()
    before, table = content(model.module), model.module.table
    with nothing_changes(model) as reset:
        reset()
        model.module(torch.ones(4, 3))
        assert model.module.training
        assert model.module.seen == [1, 1]
        reset()
        assert model.module.seen == [1]
        assert not hasattr(model.module, "fresh")
        model.module(torch.ones(4, 3))
    assert content(model.module) == before
    assert model.module.table is table


def test_double_precision_ends_with_the_tensors_that_were_there():
    model = model_of()
    tensors = [*model.module.parameters(), *model.module.buffers()]
    places = [tensor.data_ptr() for tensor in tensors]
    with nothing_changes(model) as reset, in_double_precision(model, reset) as wide:
        wide()
        assert {p.dtype for p in model.module.parameters()} == {torch.float64}
        assert model.module.calls.dtype == torch.float64
    now = [*model.module.parameters(), *model.module.buffers()]
    assert [tensor.data_ptr() for tensor in now] == places
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}


def test_statistics_of_batchnorm_are_no_memory():
    """Ranks compute them over all rows; what else a forward pass changes is one."""
    model = model_of()
    found = memories(model)
    assert [tensor.shape for tensor in found] == [(1,), (2,)]


# -- what some rows yield --------------------------------------------------------------------------

X = torch.arange(24, dtype=torch.float64).reshape(8, 3) / 10
Y = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]


def plain(criterion, module=None):
    torch.manual_seed(0)
    module = nn.Linear(3, 1).double() if module is None else module
    return PlainModel(module, criterion, torch.optim.SGD(module.parameters(), lr=0.1))


def test_random_numbers_are_the_same_for_every_part():
    model = plain(nn.MSELoss(), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)).double())
    with nothing_changes(model) as reset:
        first, again = (evaluate(model, X, Y, reset).loss for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("where", ["module", "loss"])
def test_who_raises_is_named(where):
    def fail(*given):
        raise KeyError("rows that are not here")

    model = plain(fail if where == "loss" else nn.MSELoss())
    if where == "module":
        model.module.forward = fail
    with nothing_changes(model) as reset, pytest.raises(RaisesError) as caught:
        evaluate(model, X, Y, reset)
    assert caught.value.where == where


class Restless(nn.Module):
    """What `act` does to it in a forward pass."""

    def __init__(self, act):
        super().__init__()
        self.layer, self.act = nn.Linear(3, 2), act
        self.register_buffer("queue", torch.zeros(1))
        self.register_buffer("empty", None)

    def forward(self, x):
        self.act(self)
        return self.layer(x)


def grow(module):
    module.queue = torch.cat([module.queue, module.queue])


def fail(module):
    grow(module)
    raise LookupError


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda module: module.queue.add_(1), None),
        (grow, "changes the shape of module.queue"),
        (lambda module: setattr(module, "empty", torch.ones(1)), "adds module.empty"),
        (lambda module: setattr(module, "scale", nn.Parameter(torch.ones(1))), "adds module.scale"),
        (lambda module: setattr(module.layer, "bias", None), "removes module.layer.bias"),
        (
            lambda module: module.layer.requires_grad_(False),
            "changes requires_grad of module.layer.weight",
        ),
        (fail, None),
    ],
    ids=["a value", "a shape", "a buffer", "a parameter", "one less", "frozen", "an error"],
)
def test_what_a_forward_pass_changes_is_named_and_put_back(act, says):
    module = Restless(act)
    model = PlainModel(module, nn.MSELoss(), torch.optim.SGD(module.parameters(), lr=0.1))
    before = [*module.named_parameters(), *module.named_buffers()]
    flags = [p.requires_grad for p in module.parameters()]
    assert changed_by_forward(model, torch.ones(4, 3)) == says
    after = [*module.named_parameters(), *module.named_buffers()]
    assert [(name, id(tensor)) for name, tensor in after] == [(n, id(t)) for n, t in before]
    assert [p.requires_grad for p in module.parameters()] == flags
    assert module.queue.tolist() == [0.0]
    assert module.empty is None


def test_numbers_of_an_own_generator_depend_on_the_rows():
    model = model_of()
    own, outputs = torch.Generator(), []
    model.module.forward = lambda x: model.module.layer(x) + torch.randn(len(x), 2, generator=own)
    with nothing_changes(model) as reset:
        for rows in (4, 2):
            own.manual_seed(0)
            found = evaluate(model, torch.ones(rows, 3), torch.zeros(rows, 2), reset)
            outputs.append(found.y_pred)
    assert not torch.equal(outputs[0][0], outputs[0][1])
    assert torch.equal(outputs[0][:2], outputs[1])


class Shortens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.full((4, 2), 3.0))

    def forward(self, x):
        return nn.functional.embedding(x, self.words, max_norm=1.0)


def test_what_a_forward_pass_writes_to_parameters_is_seen_and_put_back():
    module = Shortens()
    model = PlainModel(module, nn.MSELoss(), torch.optim.SGD(module.parameters(), lr=0.1))
    with nothing_changes(model) as reset:
        y = torch.zeros(1, 2)
        first, second, again = (
            evaluate(model, torch.tensor([row]), y, reset).buffers for row in (0, 1, 0)
        )
        assert torch.equal(first[0], again[0])
        assert torch.allclose(first[0], second[0]), "the same sums: rows were equal"
        both = evaluate(model, torch.tensor([0, 1]), torch.zeros(2, 2), reset).buffers
        assert not torch.allclose(first[0], both[0])
    assert bool((module.words == 3.0).all())
