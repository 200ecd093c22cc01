"""The table of parameters is what signatures and documentation say."""

from __future__ import annotations

import inspect

import pytest

import accelerando
from accelerando.estimators import _parameters as parameters
from accelerando.estimators._base import ConfiguredNet

CLASSES = sorted(parameters.CRITERIA)


@pytest.mark.parametrize("name", CLASSES)
def test_the_signature_is_the_table(name):
    signature = inspect.signature(getattr(accelerando, name)).parameters
    table = {parameter.name: parameter for parameter in parameters.parameters_of(name)}
    assert [*table, "kwargs"] == list(signature)
    for parameter in table.values():
        default = signature[parameter.name].default
        assert (default is inspect.Parameter.empty) == (parameter.default == ""), parameter.name
        annotation = signature[parameter.name].annotation
        assert annotation.replace("'", '"') == parameter.type


@pytest.mark.parametrize("name", CLASSES)
def test_every_default_of_the_documentation_is_that_of_the_signature(name):
    for parameter in parameters.parameters_of(name):
        documented = parameter.kind.partition("default=")[2]
        if parameter.default:
            shown = documented.removeprefix("torch.utils.data.").removeprefix("skorch.dataset.")
            assert shown == parameter.default, parameter.name
        else:
            assert documented == ""


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_is_documented_once_and_in_order(name):
    text = inspect.cleandoc(getattr(accelerando, name).__doc__)
    section = text.split("Parameters\n----------\n")[1].split("\nAttributes\n")[0]
    documented = [line.split(" : ")[0] for line in section.splitlines() if line[:1].strip()]
    expected = [parameter.name for parameter in parameters.parameters_of(name)]
    assert documented == [*expected, "**kwargs"]


def test_the_shared_base_has_the_same_defaults():
    base = inspect.signature(ConfiguredNet).parameters
    net = inspect.signature(accelerando.NeuralNet).parameters
    for parameter in parameters.OURS:
        assert base[parameter.name].default == net[parameter.name].default, parameter.name
    assert base["batch_size"].default == net["batch_size"].default
