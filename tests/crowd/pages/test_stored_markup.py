"""Words that look like markup are shown or removed, wherever they were stored; none runs."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Page, expect

from accelerando.crowd.experiment.texts import TEXTS
from tests.crowd.pages.browsers import Ear
from tests.crowd.pages.lab import NAME, PASSWORD, Lab, color_files
from tests.crowd.pages.participant import Participant

OpenWindow = Callable[..., Page]

WORDS = "x'\"></textarea></title></script><img src=x onerror=window.ran=1><svg onload=window.ran=1>"
LINK = (
    "<a href='javascript:window.ran=1' onclick='window.ran=1'>link</a><script>window.ran=1</script>"
)
# Each field of the experiment file that takes words, with the words of the field's name.
FIELDS: dict[str, Any] = {
    "title": f"title {WORDS}",
    "instructions": f"instructions {WORDS}{LINK}",
    "consent": {
        "text": f"consent {WORDS}{LINK}",
        "version": "1'\"><img src=x onerror=window.ran=1>",
    },
    "debrief": f"debrief {WORDS}{LINK}",
    "slots": {place: f"{place} {WORDS}{LINK}" for place in ("top", "middle", "bottom")},
    "texts": {word: f"{word} {WORDS}" for word in TEXTS},
    "breaks": {"every": 1, "text": f"break {WORDS}{LINK}"},
    "completion": {"done": {"code": f"code {WORDS}"}},
    "css": "body { color: black } </style><img src=x onerror=window.ran=1>",
    "participants": {"answers": 2},
}


def nothing_ran(page: Page) -> None:
    """The browser is asked after its queue is empty: an image that fails to load tells late."""
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.ran === undefined")
    assert page.locator("[onerror], [onload], [onclick], [href^='javascript:']").count() == 0


def test_no_field_of_an_experiment_runs_a_script(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("404")  # a picture is allowed in instructions; this one is missing
    lines = "\n".join(f"item {k} {WORDS}" for k in range(4))
    link = lab.new("markup", files=[("items.txt", lines.encode())], **FIELDS)
    page = open_window()
    page.goto(f"{link}?participant={quote(WORDS)}&STUDY_ID={quote(WORDS)}")
    nothing_ran(page)
    mallory, last, seen = Participant(page), None, page.inner_text("body")
    page.locator("#stage button").first.click()
    for _ in range(40):
        page.wait_for_timeout(300)
        nothing_ran(page)
        seen += page.inner_text("body")
        if "debrief" in seen:
            break
        if page.locator(".question[data-query]").count():
            last = mallory.question(after=last)
            mallory.choose("left")
        else:
            page.locator("#stage button:enabled").first.click()
    for word in ("instructions", "consent", "question", "break", "code", "debrief", "item"):
        assert word in seen, word
    assert "<img src=x onerror" in seen  # the items are texts: shown as they are


def test_nor_does_what_a_participant_sent_on_the_experimenter_s_pages(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("404")
    lines = "\n".join(f"item {k} {WORDS}" for k in range(4))
    fields = {name: value for name, value in FIELDS.items() if name not in ("consent", "breaks")}
    lab.new("markup-seen", files=[("items.txt", lines.encode())], **fields)
    lab.take_part("markup-seen", WORDS, 2)
    page = open_window(extra_http_headers={"User-Agent": WORDS.replace("\n", "")})
    page.goto(f"{lab.url}/sign-in")
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("body")).to_contain_text("markup-seen")
    nothing_ran(page)
    seen = page.inner_text("body")
    visited = set()
    for _ in range(2):  # what the first pages link to, and what these link to
        hrefs = page.eval_on_selector_all("a[href]", "found => found.map(one => one.href)")
        for href in hrefs:
            inside = href.startswith(lab.url) and "markup-seen" in href
            if inside and "/downloads/" not in href and href not in visited:
                visited.add(href)
                page.goto(href)
                nothing_ran(page)
                seen += page.inner_text("body")
    assert visited
    assert "title x'\"></textarea>" in seen


def test_nor_what_is_typed_or_sent_into_any_form(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    """Names of files and tokens, keys of settings, codes, addresses; and the map with its tips."""
    ear.forgive("404", "401", "403", "422")
    seen, page = "", open_window(viewport={"width": 1280, "height": 900})

    def look() -> None:
        nonlocal seen
        nothing_ran(page)
        seen += page.inner_text("body")

    sent = WORDS.replace("/", "∕")  # a slash ends the name of a file
    items = [(f"file {k} {sent}.png", content) for k, (_, content) in enumerate(color_files(5))]
    lab.new("markup-map", files=items, samplers={"arr": {"class": "ARR"}})
    # Without the picture that is missing: items that cannot be shown are replaced.
    html = [f"<b>mark {k}</b>{LINK}<svg onload=window.ran=1></svg>" for k in range(4)]
    rows = [(text, f"alt {k} {WORDS}") for k, text in enumerate(html)]
    table = io.StringIO()
    csv.writer(table).writerows([("html", "alt"), *rows])
    page.goto(lab.new("markup-html", files=[("l.csv", table.getvalue().encode())]))
    page.locator("#stage button").first.click()
    expect(page.locator(".question[data-query]")).to_be_visible()
    look()
    lab.take_part("markup-map", WORDS, 12)
    for where in (f"/sign-in?next={quote(WORDS)}", f"/e/{quote(WORDS)}/", f"/e/x{quote(sent)}"):
        page.goto(lab.url + where)
        look()
    page.goto(f"{lab.url}/sign-in?next=/experiments/markup-map")
    for name, password in ((WORDS, WORDS), (NAME, PASSWORD)):
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        look()
    points = page.locator("#map .point")
    expect(points).to_have_count(5)
    for k in range(5):
        points.nth(k).dispatch_event("pointerover", {"bubbles": True})
        points.nth(k).hover(force=True)
        look()
    page.get_by_role("button", name="Codes").click()
    page.get_by_label("Codes", exact=True).fill(f"code {WORDS}")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.locator("#codes-found")).to_contain_text("unknown")
    look()
    page.goto(f"{lab.url}/experiments-account")
    page.get_by_label("Name of the token").fill(f"token {WORDS}")
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#tokens")).to_contain_text("token x'")
    look()
    page.goto(f"{lab.url}/experiments")
    page.get_by_role("button", name="New experiment").click()
    picture = {"name": f"bad {sent}.png", "mimeType": "image/png", "buffer": b"<svg onload=x>"}
    page.get_by_label("Items").set_input_files([picture])
    page.get_by_text("More settings").click()
    wrong = json.dumps({"name": f"no {WORDS}", f"key {WORDS}": 1, "title": {f"t {WORDS}": 2}})
    file = {"name": f"s {sent}.yaml", "mimeType": "text/yaml", "buffer": wrong.encode()}
    page.get_by_label("Or a settings file").set_input_files([file])
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#new-problems li").first).to_be_visible()
    look()
    for word in ("file 0 x'", "code x'", "token x'", "key x'", "mark"):
        assert word in seen, word
