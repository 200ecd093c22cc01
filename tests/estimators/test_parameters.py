"""The table of parameters is what signatures and documentation say."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import accelerando
from accelerando.estimators import _parameters as parameters
from accelerando.estimators._base import ConfiguredNet

FOLDER = Path(parameters.__file__).parent
CLASSES = sorted(parameters.FILES)


def source_of(name):
    return (FOLDER / parameters.FILES[name]).read_text()


@pytest.mark.parametrize("name", CLASSES)
def test_generating_again_changes_nothing(name):
    """``python -m accelerando.estimators._parameters`` and ``ruff format`` leave the file."""
    source = source_of(name)
    generated = parameters.generated(name, source)
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--line-length", "100", "-"],
        input=generated, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert formatted == source


@pytest.mark.parametrize("name", CLASSES)
def test_a_change_in_the_table_changes_the_file(name, monkeypatch):
    first = parameters.OURS[0]
    monkeypatch.setattr(parameters, "OURS", [first._replace(default="17"), *parameters.OURS[1:]])
    generated = parameters.generated(name, source_of(name))
    assert f"{first.name}: {first.type} = 17," in generated
    assert generated.count("    Parameters\n    ----------\n") == 1
    assert generated.count(parameters.START) == generated.count(parameters.END) == 1


def test_every_file_is_written(tmp_path, monkeypatch):
    for file in parameters.FILES.values():
        (tmp_path / file).write_text((FOLDER / file).read_text().replace("lr : float", "lr : ?"))
    monkeypatch.setattr(parameters, "__file__", str(tmp_path / "_parameters.py"))
    parameters.main()
    for file in parameters.FILES.values():
        assert "lr : float" in (tmp_path / file).read_text()


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


def test_lines_are_not_too_long():
    for name in CLASSES:
        assert max(map(len, parameters.documentation(name).splitlines())) <= 100
