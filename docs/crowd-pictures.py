"""Draw the pictures of the crowd's pages: python docs/crowd-pictures.py

Runs the demo for a while, looks at it with Chromium, and writes docs/images/crowd-*.png.
"""

import argparse
import io
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
N_COLORS = 256  # enough for flat pages, and a third of the bytes


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """A running demo: its address and its password."""
    command = [sys.executable, "-m", "accelerando", "crowd", "demo", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("stop:"):
                break
        base = re.search(r"dashboard:\s+(\S+)/experiments/", said)
        password = re.search(r"password: (\S+)", said)
        assert base is not None
        assert password is not None
        try:
            yield base[1], password[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.stdout.read()


def save(page: Page, name: str, **options: object) -> None:
    picture = Image.open(io.BytesIO(page.screenshot(**options)))  # type: ignore[arg-type]
    small = picture.convert("RGB").quantize(N_COLORS)
    small.save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size // 1024} kB")


def draw_participant(browser: Browser, base: str) -> None:
    shapes = {
        "crowd-participant": {"viewport": {"width": 1000, "height": 640}},
        "crowd-phone": {
            "viewport": {"width": 390, "height": 780},
            "is_mobile": True,
            "has_touch": True,
            "color_scheme": "dark",
        },
    }
    for name, shape in shapes.items():
        page = browser.new_page(**shape)
        page.goto(f"{base}/e/colors/?participant={name}")
        page.get_by_role("button", name="Start").click()
        page.locator(".question[data-query]").wait_for()
        page.wait_for_timeout(300)
        page.locator(".choice.left").click()
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("button", name="Start").click()
        page.locator(".question[data-query]").wait_for()
        page.mouse.move(0, 0)
        save(page, name)
        page.close()


def draw_experimenter(browser: Browser, base: str, password: str, seconds: float) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 920})
    page.goto(f"{base}/experiments")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="New experiment").click()
    page.get_by_label("Title").fill("Which faces look alike?")
    page.wait_for_timeout(300)
    save(page, "crowd-new", clip={"x": 340, "y": 20, "width": 600, "height": 880})
    page.goto(f"{base}/experiments/colors")
    page.wait_for_timeout(1000 * seconds)
    save(
        page,
        "crowd-dashboard",
        clip={"x": 0, "y": 0, "width": 1280, "height": 1340},
        full_page=True,
    )
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100, help="how long the demo runs first")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    with demo() as (base, password), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox"]
        )
        draw_participant(browser, base)
        draw_experimenter(browser, base, password, options.seconds)
        browser.close()


if __name__ == "__main__":
    main()
