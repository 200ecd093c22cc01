"""Every parameter, every option and every link of the documentation is there."""

import argparse
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

from accelerando import search
from accelerando.cli import build_parser
from tests import public_api

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
THINGS = [
    (f"{module}.{name}", getattr(importlib.import_module(module), name))
    for module in public_api.modules()
    for name in public_api.names(importlib.import_module(module))
]
CALLABLES = [
    pytest.param(thing, id=path)
    for path, thing in THINGS
    if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, BaseException))
]


def sections(words):
    """The lines of a docstring by the underlined title above them."""
    lines = inspect.cleandoc(words or "").splitlines()
    titles = [n for n, line in enumerate(lines[1:]) if line and not line.strip("-")]
    for title, end in pairwise([*titles, len(lines)]):
        yield lines[title], lines[title + 2 : end]


def entries(thing):
    """What stands under Parameters and Attributes, by name: in its docstring, or in a base's."""
    kinds = thing.__mro__ if inspect.isclass(thing) else [thing]
    known = {}
    for kind in reversed([k for k in kinds if k.__module__.startswith("accelerando")]):
        for words in (kind.__doc__, getattr(vars(kind).get("__init__"), "__doc__", None)):
            for title, lines in sections(words):
                if title in ("Parameters", "Attributes"):
                    for line in lines:
                        if line[:1].strip():  # an entry begins at the margin
                            text = [line]
                            names = re.findall(r"\w+", line.split(" : ")[0])
                            known |= dict.fromkeys(names, text)
                        else:
                            text.append(line.strip())
    return {name: " ".join(text).strip() for name, text in known.items()}


def parameters(thing):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in inspect.signature(thing).parameters.values() if p.kind not in kinds]


@pytest.mark.parametrize("thing", CALLABLES)
def test_every_parameter_is_in_the_docstring(thing):
    assert [name for name in parameters(thing) if name not in entries(thing)] == []


def test_searches_describe_what_they_share_in_the_same_words():
    hyperband, *others = (
        search.HyperbandSearchCV,
        search.SuccessiveHalvingSearchCV,
        search.AsyncHalvingSearchCV,
        search.IncrementalSearchCV,
    )
    own = {"max_iter", "aggressiveness", "patience", "sampler"}
    for other in others:
        shared = set(parameters(other)) & set(parameters(hyperband)) - own
        assert len(shared) > 15
        differ = [name for name in shared if entries(other)[name] != entries(hyperband)[name]]
        assert differ == [], other


def arguments(path, parser):
    """Every argument of a command and of those inside it, with the command it belongs to."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from arguments(f"{path} {name}", child)
        elif not isinstance(action, argparse._HelpAction):
            yield path, action


ARGUMENTS = list(arguments("accelerando", build_parser()))


@pytest.mark.parametrize(("path", "action"), ARGUMENTS, ids=lambda it: getattr(it, "dest", it))
def test_every_argument_says_what_it_does(path, action):
    assert action.help


def test_the_page_of_the_commands_has_every_argument_with_its_default():
    def name(action):
        return ", ".join(f"`{name}`" for name in action.option_strings or [action.dest])

    def default(action):
        said = str(action.default)
        return "" if said in ("None", "False", "", argparse.SUPPRESS) else f"`{said}`"

    page = (ROOT / "docs" / "commands.md").read_text()
    written = {
        (command, *(cell.strip() for cell in (row[0], row[-1])))
        for command, section in re.findall(
            r"^## `([^`]+)`$(.*?)(?=^## |\Z)", page, re.DOTALL | re.M
        )
        for row in (line.strip("|").split(" | ") for line in section.splitlines())
        if row[0].startswith(" `")
    }
    assert written == {(path, name(action), default(action)) for path, action in ARGUMENTS}


def anchors(page):
    """The anchors MyST gives to headings: small letters, words joined by hyphens."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_anchors_of_links_between_pages_exist(page):
    links = re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text())
    wrong = [
        (name, anchor)
        for name, anchor in links
        if anchor not in anchors((page.parent / name) if name else page)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_addresses_are_whole(page):
    addresses = re.findall(r"\]\((https?://[^)\s]*)\)", page.read_text())
    assert [a for a in addresses if not re.fullmatch(r"https?://[\w.-]+\.\w+(/\S*)?", a)] == []


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text()
    tables = re.findall(r"```\{toctree\}.*?\n\n(.*?)```", index, re.DOTALL)
    listed = [name for table in tables for name in table.split()]
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages)


def test_the_tutorials_come_first_and_have_one_shape():
    index = (ROOT / "docs" / "index.md").read_text()
    first = re.search(r"```\{toctree\}.*?\n\n(.*?)```", index, re.DOTALL)[1].split()
    assert first == ["train-tutorial", "search-tutorial", "crowd-serve"]
    for name, block in zip(first, ("Train: ", "Search: ", "Ask people: "), strict=True):
        text = (ROOT / "docs" / f"{name}.md").read_text()
        assert text.startswith(f"# {block}")
        assert text.index("```{image}") < text.index("\n## ")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings[0] == "1. Install"
        assert [h.split(".")[0] for h in headings[:-1]] == [
            str(n + 1) for n in range(len(headings) - 1)
        ]
        assert headings[-1] == "Read on"
