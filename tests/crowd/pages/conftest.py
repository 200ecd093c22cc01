from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.crowd.pages.browsers import Ear, chromium, window
from tests.crowd.pages.lab import PASSWORD, Lab, color_files
from tests.crowd.serving import serving

SMALL = "name: first\ntitle: First study\nitems: items\nsamplers: {random: {class: Random}}\n"


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One real server for all tests here; each test makes its own experiment on it."""
    directory: Path = tmp_path_factory.mktemp("lab")
    (directory / "experiment.yaml").write_text(SMALL)
    (directory / "items").mkdir()
    for name, content in color_files(4):
        (directory / "items" / name).write_bytes(content)
    with serving(directory, password=PASSWORD) as server:
        one = Lab(server.url)
        yield one
        one.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    expect.set_options(timeout=30_000)  # a busy machine is no failure
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def ear(lab: Lab) -> Iterator[Ear]:
    """Fails the test if a page logs an error, breaks its policy or asks another host."""
    one = Ear(urlsplit(lab.url).netloc)
    yield one
    one.check()


@pytest.fixture
def open_window(browser: Browser, ear: Ear) -> Iterator[Callable[..., Page]]:
    with ExitStack() as stack:

        def opened(**options: Any) -> Page:
            return stack.enter_context(window(browser, ear, **options))

        yield opened
