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
        search.RandomIncrementalSearchCV,
    )
    own = {"max_iter", "aggressiveness", "patience", "sampler"}
    for other in others:
        shared = set(parameters(other)) & set(parameters(hyperband)) - own
        assert len(shared) > 15
        differ = [name for name in shared if entries(other)[name] != entries(hyperband)[name]]
        assert differ == [], other


def options(path, parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from options(f"{path} {name}", child)
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            yield pytest.param(path, action, id=f"{path} {action.option_strings[0]}")


@pytest.mark.parametrize(("path", "action"), list(options("accelerando", build_parser())))
def test_every_option_says_what_it_does(path, action):
    assert action.help


@pytest.mark.parametrize("command", ["plan", "doctor"])
def test_options_of_the_newer_commands_are_in_the_docs(command):
    text = (ROOT / "docs" / f"howto-{command}.md").read_text()
    subparsers = next(
        a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)
    )
    names = [s for a in subparsers.choices[command]._actions for s in a.option_strings]
    missing = [n for n in names if n not in ("-h", "--help") and f"`{n}`" not in text]
    assert [n for n in missing if f"{n} " not in text] == []


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
    listed = set(re.search(r"```\{toctree\}.*?\n\n(.*?)```", index, re.DOTALL)[1].split())
    assert listed == {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
