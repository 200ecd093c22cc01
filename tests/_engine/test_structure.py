"""A model as texts, and as a pickle without its numbers."""

import pytest
import torch
from torch import nn

from accelerando._engine.model import Components
from accelerando._engine.structure import (
    Description,
    checksum,
    describe,
    differences,
    pack_attributes,
    pack_structure,
    set_attributes,
    set_evaluated,
    set_frozen,
    unpack_structure,
)
from accelerando.exceptions import UnsupportedError


class Holder:
    pass


def model(hidden=4):
    module = nn.Sequential(nn.Linear(3, hidden), nn.Dropout(0.5), nn.Linear(hidden, 2))
    module.register_buffer("mask", torch.ones(2), persistent=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    return Components({"module": module}, {"criterion": nn.MSELoss()}, {"optimizer": optimizer})


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.data.mul_(2),
        lambda t: t.numpy().__setitem__(0, 7.0),
        lambda t: t.data.copy_(t.flip(0)),
        lambda t: t.data.neg_(),
    ],
)
def test_a_checksum_sees_every_change(change):
    tensor = torch.arange(1.0, 6.0)
    before = checksum(tensor)
    change(tensor)
    assert checksum(tensor) != before


def test_a_checksum_is_of_the_values_and_not_of_their_layout():
    image = torch.randn(2, 3, 4, 5)
    assert checksum(image) == checksum(image.contiguous(memory_format=torch.channels_last))
    assert checksum(torch.eye(3)) == checksum(torch.eye(3).to_sparse())
    assert checksum(torch.zeros(0))
    assert checksum(torch.zeros((), dtype=torch.bool))
    assert checksum(torch.zeros(2, dtype=torch.bfloat16)) != checksum(torch.zeros(2))


@pytest.mark.parametrize(
    ("before", "now"), [(1, 2), (True, 1), ("a", "b"), ([1], [2]), (torch.ones(1), torch.zeros(1))]
)
def test_whatever_an_optimizer_remembers_is_compared(before, now):
    components = model()
    optimizer = components.optimizers["optimizer"]
    memory = optimizer.state[next(iter(components.modules["module"].parameters()))]
    memory["kept"], group = before, optimizer.param_groups[0]
    first = describe(components).numbers
    memory["kept"] = now
    second = describe(components).numbers
    assert len(differences(first, second)) == 1
    group["lr"] = torch.tensor(0.1)  # its value travels with the settings unless it is a tensor
    assert len(differences(second, describe(components).numbers)) == 1


def test_two_models_that_are_built_alike_have_one_description():
    assert describe(model()).is_like(describe(model()))
    assert not describe(model()).is_like(describe(model(hidden=5)))
    one = model()
    assert unpack_structure(model(), pack_structure(one, describe(one))) is None


def test_a_packed_model_keeps_what_belongs_together():
    source = model()
    holder = Holder()
    holder.scheduler = torch.optim.lr_scheduler.StepLR(source.optimizers["optimizer"], 1)
    source.extras["callback"] = holder
    source.modules["module"][2].weight = nn.Parameter(torch.ones(2, 4), requires_grad=False)
    found = unpack_structure(model(hidden=5), pack_structure(source, describe(source)))
    module, optimizer = found.modules["module"], found.optimizers["optimizer"]
    assert found.extras["callback"].scheduler.optimizer is optimizer
    assert optimizer.param_groups[0]["params"][0] is module[0].weight
    assert not module[2].weight.requires_grad
    assert describe(found, numbers=False).structure == describe(source).structure


def test_attributes_travel_by_name():
    source, target = model(), model()
    before = describe(source)
    source.modules["module"][1].p = 0.1
    source.modules["module"].mask.zero_()
    source.modules["module"].teacher = source.modules["module"][0]
    del source.criteria["criterion"].reduction
    names = differences(before.attributes, describe(source).attributes)
    assert set(names) == {"module.1#p", "module#mask", "criterion#reduction"}
    set_attributes(target, pack_attributes(source, names))
    assert target.modules["module"][1].p == 0.1
    assert not target.modules["module"].mask.any()
    assert not hasattr(target.criteria["criterion"], "reduction")


def test_attributes_of_parameters_travel_with_them():
    here, there = model(), model()
    weight = here.modules["module"][0].weight
    weight.scale, weight.of = 2.0, here.modules["module"]
    weight._dynamo_mark = object()  # of PyTorch's compiler
    names = differences(describe(there).attributes, describe(here).attributes)
    assert names == ["module.0.weight#scale", "module.0.weight#of"]
    set_attributes(there, pack_attributes(here, names))
    other = there.modules["module"][0].weight
    assert other.scale == 2.0
    assert other.of is there.modules["module"]
    assert describe(there).is_like(describe(here))
    del weight.scale
    set_attributes(there, pack_attributes(here, ["module.0.weight#scale"]))
    assert not hasattr(other, "scale")


def test_attributes_of_parameters_are_in_the_pickle_of_a_model():
    here = model(hidden=5)
    here.modules["module"][0].weight.scale = 2.0
    made = unpack_structure(model(), pack_structure(here, describe(here)))
    assert made.modules["module"][0].weight.scale == 2.0
    assert describe(made, numbers=False).is_like(describe(here))


def test_frozen_parameters_and_layers_in_evaluation_mode():
    from tests._engine.plain import PlainModel

    components = model()
    set_frozen(components, ["module.0.weight"])
    assert describe(components).frozen == ["module.0.weight"]
    plain = PlainModel(*(next(iter(p.values())) for p in list(vars(components).values())[:3]))
    set_evaluated(plain, ["module.1"])
    assert [layer.training for layer in plain.module] == [True, False, True]
    set_evaluated(plain, None)
    assert all(layer.training for layer in plain.module)


def test_what_cannot_be_sent_is_refused_if_it_is_not_there():
    source = model()
    source.modules["module"][0].register_forward_hook(lambda *args: None)
    content = pack_structure(source, describe(source))
    with pytest.raises(UnsupportedError, match=r"module\.0\._forward_hooks"):
        unpack_structure(model(), content)


def test_what_cannot_be_sent_is_compared_by_its_description_too():
    """Hooks are in new dictionaries after a copy: their identity says nothing."""
    before = Description(attributes={"module#hooks": "not sendable: f"}, fixed={"module#hooks": 0})
    now = Description(attributes={"module#hooks": "not sendable: g"}, fixed={"module#hooks": 0})
    assert now.unsendable(before) == ["module#hooks"]
    assert before.unsendable(before) == []
