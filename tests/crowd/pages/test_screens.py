"""Small and dark screens, long names, zoom, screen readers and slow pictures: each ends well."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from playwright.sync_api import Error, Page, Route, expect

from tests.crowd.experiment.pictures import saved, scene
from tests.crowd.pages.browsers import Ear
from tests.crowd.pages.lab import Lab
from tests.crowd.pages.participant import Participant

OpenWindow = Callable[..., Page]

# What a participant has to see, as selectors within the question.
PARTS = (".head", ".choice.left", ".choice.right")
LONG = "Donaudampfschifffahrtsgesellschaftskapitän" * 3
WORDS = ["a", LONG, " ".join(["many words"] * 60), "قميص أزرق طويل جدا", "x" * 900]


class Media:
    """Requests for pictures, which the server takes and does not answer until it is told to."""

    def __init__(self, page: Page) -> None:
        self.held: list[Route] = []
        self.open = False
        page.route("**/media/**", self._take)

    def _take(self, route: Route) -> None:
        if self.open:
            route.continue_()
        else:
            self.held.append(route)

    def let_go(self) -> None:
        self.open = True
        for route in self.held:
            with suppress(Error):  # the page has given it up
                route.continue_()


def fits(page: Page, *, scrolls: bool = False) -> None:
    """Head and choices have a size, do not overlap, and are within the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "scrolls sideways"
    size = page.evaluate("[innerWidth, innerHeight]")
    boxes = [page.locator(f".question {part}").bounding_box() for part in PARTS]
    for part, box in zip(PARTS, boxes, strict=True):
        assert box is not None
        assert min(box["width"], box["height"]) >= 44, (part, box)
        assert box["x"] >= 0, (part, box)
        assert box["x"] + box["width"] <= size[0], (part, box)
        assert scrolls or box["y"] + box["height"] <= size[1], (part, box)
    head, left, right = (box for box in boxes if box is not None)
    assert left["x"] + left["width"] <= right["x"]
    assert head["y"] + head["height"] <= left["y"] or head["x"] + head["width"] <= left["x"]


@pytest.mark.parametrize("size", [(320, 568), (568, 320), (320, 256)], ids=str)
def test_words_of_any_length_on_the_smallest_screens(
    lab: Lab, open_window: OpenWindow, size: tuple[int, int]
) -> None:
    """320 × 256 is what a screen of 1280 × 1024 shows at a zoom of 400 %."""
    name = f"words-{size[0]}-{size[1]}"
    link = lab.new(name, files=[], items=WORDS, title=LONG, skip=True, participants={"answers": 6})
    page = open_window(viewport={"width": size[0], "height": size[1]})
    anna = Participant(page)
    page.goto(link)
    anna.press("Start")
    last = None
    for _ in range(6):
        last = anna.question(after=last)
        fits(page, scrolls=size[1] < 300)
        anna.choose("left")
    anna.sees("Thank you")
    assert len(lab.answers(name)) == 6


def test_items_look_the_same_in_the_dark(lab: Lab, open_window: OpenWindow) -> None:
    """A drawing in black on a transparent background would vanish on a dark card."""
    link = lab.new("in-the-dark", files=[], items=["a", "b", "c"], participants={"answers": 1})
    seen = []
    for scheme in ("light", "dark"):
        page = open_window(color_scheme=scheme)
        ben = Participant(page)
        page.goto(link)
        ben.press("Start")
        ben.question()
        look = "one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).color]"
        seen.append([page.locator(f".question {part}").evaluate(look) for part in PARTS])
        page_color = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (page_color == "rgb(20, 22, 26)") == (scheme == "dark")
    assert seen[0] == seen[1] == [["rgb(255, 255, 255)", "rgb(29, 32, 36)"]] * 3


def test_a_picture_that_never_comes_is_asked_for_again_and_then_replaced(
    lab: Lab, open_window: OpenWindow
) -> None:
    """The server takes the request and says nothing: no error, no timeout of the browser."""
    link = lab.new("hanging", participants={"answers": 2})
    page = open_window()
    media = Media(page)
    page.clock.install()
    cleo = Participant(page)
    page.goto(link)
    cleo.press("Start")
    cleo.sees("Loading")
    for _ in range(100):  # three questions, three attempts each, every one 40 seconds
        if page.locator(".reading h1", has_text="do not load").count():
            break
        page.clock.run_for(10_000)
        page.wait_for_timeout(20)
    cleo.sees("Pictures or sounds do not load")
    asked = [route.request.url for route in media.held]
    assert min(asked.count(url) for url in asked) == 3
    assert lab.answers("hanging") == []
    media.let_go()
    cleo.press("Try again")
    for _ in range(100):
        if page.locator(".question[data-query]").count():
            break
        page.clock.run_for(100)
        page.wait_for_timeout(20)
    assert page.locator(".question[data-query]").count() == 1


def test_a_slow_picture_does_not_count_as_time_to_answer(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("slow", participants={"answers": 2})
    page = open_window()
    media = Media(page)
    dan = Participant(page)
    page.goto(link)
    dan.press("Start")
    dan.sees("Loading")
    page.keyboard.press("ArrowLeft")  # nothing to answer yet
    page.wait_for_timeout(1_200)
    media.let_go()
    first = dan.question()
    assert page.locator(".waiting").count() == 0
    dan.choose("left")
    dan.question(after=first)
    (row,) = lab.answers("slow")
    assert float(row["response_time"]) < 1.2


def test_offline_the_page_says_that_the_answer_is_kept(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("ERR_INTERNET_DISCONNECTED")
    words = {"offline_saved": "Ihre Antwort bleibt hier.", "sending": "Senden …"}
    link = lab.new("kept", texts=words, participants={"answers": 5})
    page = open_window()
    eva = Participant(page)
    page.goto(link)
    eva.press("Start")
    last = eva.question()
    page.context.set_offline(True)
    eva.choose("left")
    last = eva.question(after=last)  # the page has the next question already
    eva.choose("left")
    eva.sees("Senden … Ihre Antwort bleibt hier.")
    page.context.set_offline(False)
    eva.question(after=last)
    expect(page.locator("#connection")).to_be_hidden()


def test_a_screen_reader_finds_names_roles_and_the_language(
    lab: Lab, open_window: OpenWindow
) -> None:
    files = [(f"{k}.png", saved(scene(40 + k, 30), "PNG")) for k in range(3)]
    items = [{"image": f"{k}.png", "alt": f"shoe number {k}"} for k in range(3)]
    link = lab.new("read-aloud", files=files, items=items, participants={"answers": 1})
    page = open_window()
    fay = Participant(page)
    page.goto(link)
    heading = page.get_by_role("heading", name="Instructions")
    expect(heading).to_be_focused()
    fay.press("Start")
    fay.question()
    told = page.locator("body").aria_snapshot()
    names = fay.shown()
    assert sorted(names) == ["shoe number 0", "shoe number 1", "shoe number 2"]
    assert f'button "Left: {names[1]}"' in told
    assert f'button "Right: {names[2]}"' in told
    assert f'group "Item to compare with: {names[0]}"' in told
    page.keyboard.press("Tab")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate("document.activeElement.className") == "choice left answer"
    assert page.evaluate(ring) == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="You have finished")).to_be_focused()
