"""The pages about the search say what is true: their examples run."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import accelerando.search

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("search-*.md"))
MODULES = sorted(module.name for module in pkgutil.iter_modules(accelerando.search.__path__))


def test_there_are_pages():
    names = ["search-brackets.md", "search-howto.md", "search-tutorial.md"]
    assert [page.name for page in PAGES] == names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prompts_answer_as_printed(page):
    text = "\n".join(re.findall(r"```python\n(>>>.*?)```", page.read_text(), re.DOTALL))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_answer_as_printed(name):
    module = importlib.import_module(f"accelerando.search.{name}")
    assert doctest.testmod(module).failed == 0


def test_the_first_search_of_the_howto_runs(capsys):
    (first, *_) = re.findall(
        r"```python\n(.*?)```", (DOCS / "search-howto.md").read_text(), re.DOTALL
    )
    names = {}
    exec(first, names)
    assert names["search"].best_score_ > 0.8
    assert "alpha" in capsys.readouterr().out


def test_every_public_name_is_in_the_docs():
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in accelerando.search.__all__ if name not in text] == []
