"""Signatures and documentation are written from the table of parameters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accelerando.estimators import _parameters as parameters
from accelerando.estimators import _signatures as signatures

FOLDER = Path(signatures.__file__).parent
CLASSES = sorted(signatures.FILES)


def source_of(name):
    return (FOLDER / signatures.FILES[name]).read_text()


@pytest.mark.parametrize("name", CLASSES)
def test_generating_again_changes_nothing(name):
    """``python -m accelerando.estimators._signatures`` and ``ruff format`` leave the file."""
    source = source_of(name)
    generated = signatures.generated(name, source)
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--line-length", "100", "-"],
        input=generated, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert formatted == source


@pytest.mark.parametrize("name", CLASSES)
def test_a_change_in_the_table_changes_the_file(name, monkeypatch):
    first = parameters.OURS[0]
    monkeypatch.setattr(parameters, "OURS", [first._replace(default="17"), *parameters.OURS[1:]])
    generated = signatures.generated(name, source_of(name))
    assert f"{first.name}: {first.type} = 17," in generated
    assert generated.count("    Parameters\n    ----------\n") == 1
    assert generated.count(signatures.START) == generated.count(signatures.END) == 1


def test_every_file_is_written(tmp_path, monkeypatch):
    for file in signatures.FILES.values():
        (tmp_path / file).write_text((FOLDER / file).read_text().replace("lr : float", "lr : ?"))
    monkeypatch.setattr(signatures, "__file__", str(tmp_path / "_signatures.py"))
    signatures.main()
    for file in signatures.FILES.values():
        assert "lr : float" in (tmp_path / file).read_text()


def test_lines_are_not_too_long():
    for name in CLASSES:
        assert max(map(len, signatures.documentation(name).splitlines())) <= 100
