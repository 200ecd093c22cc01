"""A real Chromium, and an ear for everything that a page must not do."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.packages import install

# Violations of the page's policy are events, before and besides what the console says.
_LISTEN = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def chromium() -> str:
    """The path of Debian's Chromium; installed if it is missing and we may."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    for attempt in range(2):
        for name in names:
            if found := shutil.which(name):
                return found
        if attempt == 0:
            install("chromium", "fonts-dejavu-core")
    if os.environ.get("CI"):
        pytest.fail("there is no Chromium: apt-get install chromium")
    pytest.skip("there is no Chromium on this machine: apt-get install chromium")


class Ear:
    """What went wrong on the pages of one test."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.heard: list[str] = []
        self.forgiven: list[str] = []

    def forgive(self, *words: str) -> None:
        """Expect errors with these words: the test provokes them."""
        self.forgiven += words

    def listen(self, context: BrowserContext) -> None:
        context.add_init_script(_LISTEN)
        context.on("console", lambda message: self._hear(message.type, message.text))
        context.on("weberror", lambda error: self._hear("error", str(error.error)))
        context.on("request", self._request)

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self.host:
            self.heard.append(f"request to {request.url}")

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.heard.append(f"{kind}: {text}")

    def check(self) -> None:
        left = [line for line in self.heard if not any(word in line for word in self.forgiven)]
        assert left == [], left


@contextmanager
def window(browser: Browser, ear: Ear, **options: Any) -> Iterator[Page]:
    """A fresh window: own cookies, own storage."""
    settings = {"viewport": {"width": 1100, "height": 760}, "locale": "en-GB", **options}
    context = browser.new_context(**settings)
    context.set_default_timeout(30_000)
    ear.listen(context)
    try:
        yield context.new_page()
    finally:
        context.close()
