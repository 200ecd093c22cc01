"""``import accelerando`` is light, and everything public is an attribute of it."""

import subprocess
import sys

import pytest

import accelerando as acc


@pytest.mark.parametrize("name", acc._PACKAGES)
def test_packages_need_no_import_of_their_own(name):
    assert getattr(acc, name).__name__ == f"accelerando.{name}"
    assert name in dir(acc)


def test_packages_come_when_they_are_asked_for():
    code = (
        "import sys, accelerando as acc\n"
        "assert not {'torch', 'numpy', 'accelerando.search'} & set(sys.modules)\n"
        "acc.search.HyperbandSearchCV\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_refused_as_usual():
    with pytest.raises(AttributeError, match="'accelerando' has no attribute 'serach'"):
        acc.serach  # noqa: B018
