"""Code in the crowd pages imports names that exist, and the pages mention every sampler."""

import ast
import re
from pathlib import Path

import pytest

from accelerando import crowd

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("crowd-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_parse_and_import_what_exists(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "accelerando.crowd":
                for alias in node.names:
                    assert hasattr(crowd, alias.name), alias.name


def test_every_sampler_is_explained():
    text = next(page for page in PAGES if "query" in page.name).read_text(encoding="utf-8")
    for name in ("ARR", "Random", "RoundRobin", "Greedy", "Uncertainty", "Validation"):
        assert f"`{name}`" in text


def test_pictures_are_there():
    for page in PAGES:
        for name in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).exists()
