"""The documentation is complete, and what it shows runs."""

import importlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelerando._version import __version__
from tests import public_api

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PUBLIC = [
    (module, name)
    for module in public_api.modules()
    for name in public_api.names(importlib.import_module(module))
]


def blocks(page, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda value: value)
def test_public_names_have_a_docstring_and_are_in_the_docs(module, name):
    thing = getattr(importlib.import_module(module), name)
    assert isinstance(thing, str | Mapping) or (thing.__doc__ or "").strip()
    reference = (ROOT / "docs" / "reference.md").read_text()
    assert (
        re.search(rf"\b{name}\b", reference) or f"automodule:: {module}\n   :members:" in reference
    )


def test_the_reference_has_one_page_for_each_public_object():
    reference = (ROOT / "docs" / "reference.md").read_text()
    listed = re.findall(r"^   ~(accelerando[\w.]+)$", reference, re.MULTILINE)
    listed += re.findall(r"^\.\. autoexception:: (\S+)$", reference, re.MULTILINE)
    assert len(listed) == len(set(listed))
    for name in listed:
        module, _, thing = name.rpartition(".")
        assert hasattr(importlib.import_module(module), thing), name
    last = {name.rpartition(".")[2] for name in listed} | {"__version__"}
    assert {name for _, name in PUBLIC} <= last


def test_what_users_can_rely_on_names_every_public_module():
    text = (ROOT / "docs" / "deprecation.md").read_text()
    assert set(re.findall(r"`(accelerando[\w.]*)`", text)) == set(public_api.modules())


def test_every_policy_is_explained():
    from accelerando import batch_size

    text = (ROOT / "docs" / "policies.md").read_text()
    assert [name for name in batch_size.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {re.match(r"[\w.-]+", line)[0] for group in groups for line in group} - {"accelerando"}
    text = (ROOT / "docs" / "dependencies.md").read_text()
    words = set(re.findall(r"[\w-]+", text))
    assert needed | set(project["optional-dependencies"]) <= words
    explained = set(re.findall(r"^`?([\w-]+)`?\n: ", text, re.MULTILINE))
    assert explained <= needed | set(project["optional-dependencies"])  # nothing that has gone


def test_pictures_are_small_and_shown():
    text = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name}" in text
        assert picture.stat().st_size < 200_000


def test_the_newest_release_in_the_changelog_is_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == __version__


@pytest.mark.timeout(300)  # pages train models and start clusters, on cores that others use too
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_python_blocks_run_in_their_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "documentation"}
    for number, block in enumerate(blocks(page), start=1):
        if block.startswith(">>>"):  # run with their answers by tests/search/test_docs.py
            continue
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_between_files_lead_somewhere(page):
    text = page.read_text()
    links = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", text)
    links += re.findall(r"^```\{image\} (\S+)$", text, re.MULTILINE)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_have_a_known_language(page):
    opened = re.findall(r"^```(\S*)\n", page.read_text(), re.MULTILINE)
    languages = {language for language in opened if language and not language.startswith("{")}
    assert languages <= {"python", "console", "text", "toml", "yaml"}
