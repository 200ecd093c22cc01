"""Hints name the command as this user can type it."""

import shutil
import sys

from accelerando._this_command import this_command


def test_it_is_short_where_a_shell_finds_this_installation(monkeypatch, tmp_path):
    (tmp_path / "accelerando").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name))
    assert this_command() == "accelerando"


def test_it_is_the_full_path_of_an_environment_that_is_not_active(monkeypatch, tmp_path):
    (tmp_path / "accelerando").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for found in (None, "/somewhere/else/accelerando"):
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        assert this_command() == str(tmp_path / "accelerando")


def test_without_a_script_it_is_the_module(monkeypatch, tmp_path):
    python = tmp_path / "with space" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert this_command() == f"'{python}' -m accelerando"
