"""Items that do not load, inline style, and sizes for phones, in a real browser."""

import hashlib
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.crowd.experiment.pictures import saved, scene, sound
from tests.crowd.pages.browsers import Ear
from tests.crowd.pages.lab import NAME, PASSWORD, Lab, color_files
from tests.crowd.pages.participant import Participant

OpenWindow = Callable[..., Page]

# A film of a moving square, recorded by the browser itself.
FILM = """async (hue) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const paint = canvas.getContext("2d");
  const stream = canvas.captureStream(20);
  const recorder = new MediaRecorder(stream, { mimeType: "video/webm;codecs=vp8" });
  const parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  const done = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.start();
  for (let k = 0; k < 10; k += 1) {
    paint.fillStyle = `hsl(${hue + k} 80% 50%)`;
    paint.fillRect(0, 0, 64, 64);
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
  recorder.stop();
  await done;
  return [...new Uint8Array(await new Blob(parts).arrayBuffer())];
}"""


def unshown(lab: Lab, name: str) -> dict[str, tuple[int, int]]:
    """What the dashboard says about items that did not load."""
    news = lab.http.get(f"/api/v1/experiments/{name}/dashboard").json()
    names = news["items"]["names"]
    return {names[one["item"]]: (one["times"], one["participants"]) for one in news["unshown"]}


def answer_all(person: Participant) -> None:
    person.press("Start")
    last = None
    while True:
        next_one = person.page.locator(
            f'.question[data-query]:not([data-query="{last}"]), .reading'
        )
        next_one.first.wait_for()
        if person.page.locator(".reading").is_visible():
            return
        last = person.question(after=last)
        person.page.locator(".choice.left button, button.choice.left").first.click()


def refuse(page: Page, *contents: bytes) -> None:
    """Let these files fail to load."""
    for content in contents:
        page.route(
            f"**/media/**/{hashlib.sha256(content).hexdigest()}*",
            lambda route: route.fulfill(status=404),
        )


def asked(lab: Lab, name: str) -> set[str]:
    """Numbers of the items in the stored answers."""
    return {row[part] for row in lab.answers(name) for part in ("head", "left", "right")}


def test_queries_with_a_picture_that_does_not_load_are_replaced(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("404")
    files = color_files(5)
    link = lab.new("one-missing", files=files, participants={"answers": 4})
    page = open_window()
    refuse(page, files[2][1])
    page.goto(link)
    answer_all(Participant(page))
    assert len(lab.answers("one-missing")) == 4
    assert "2" not in asked(lab, "one-missing")
    ((name, (times, people)),) = unshown(lab, "one-missing").items()
    assert (name, people) == (files[2][0], 1)
    # The page asks for two queries at a time; later ones avoid the picture.
    assert 1 <= times <= 2

    board = open_window()
    board.goto(f"{lab.url}/sign-in")
    board.get_by_label("Name").fill(NAME)
    board.get_by_label("Password").fill(PASSWORD)
    board.get_by_role("button", name="Sign in").click()
    board.goto(f"{lab.url}/experiments/one-missing")
    expect(board.locator("#unshown")).to_contain_text(f"{files[2][0]} ({times} time")


def test_when_nothing_loads_the_page_says_so_and_tries_again(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("404")
    link = lab.new("none-loads", participants={"answers": 2})
    page = open_window()
    page.route("**/media/**", lambda route: route.fulfill(status=404))
    dan = Participant(page)
    page.goto(link)
    dan.press("Start")
    dan.sees("Pictures or sounds do not load")
    assert page.locator(".question").count() == 0
    assert lab.answers("none-loads") == []
    page.unroute("**/media/**")
    dan.press("Try again")
    first = dan.question()
    dan.choose("left")
    dan.question(after=first)
    dan.choose("right")
    dan.sees("Thank you")
    assert len(lab.answers("none-loads")) == 2


MANY = 10  # answers, so that every item is in a query: three would leave one out now and then


def test_films_sounds_and_pictures_in_html_that_do_not_load(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    """Each kind: five items, of which one cannot be had."""
    ear.forgive("404", "ERR_", "Failed to load")
    page = open_window()
    page.goto(f"{lab.url}/sign-in")
    films = [(f"{k}.webm", bytes(page.evaluate(FILM, 60 * k))) for k in range(5)]
    sounds = [(f"{k}.wav", sound(0.2 + k / 50)) for k in range(5)]
    for name, files in (("films", films), ("sounds", sounds)):
        link = lab.new(name, files=files, participants={"answers": MANY})
        refuse(page, files[1][1])
        page.goto(link)
        answer_all(Participant(page))
        assert len(lab.answers(name)) == MANY, name
        assert "1" not in asked(lab, name), name
        assert set(unshown(lab, name)) == {files[1][0]}

    icon = f"{lab.url}/static/icon.svg"
    items = [{"html": f"<b>{k}</b> <img src='{icon}?{k}' alt='{k}'>"} for k in range(5)]
    link = lab.new("in-html", files=[], items=items, participants={"answers": MANY})
    page.route(f"{icon}?3", lambda route: route.fulfill(status=404))
    page.goto(link)
    answer_all(Participant(page))
    assert len(lab.answers("in-html")) == MANY
    assert "3" not in asked(lab, "in-html")
    assert set(unshown(lab, "in-html")) == {"3"}


def test_inline_style_of_items_and_texts_is_seen(lab: Lab, open_window: OpenWindow) -> None:
    box = "<div style='width: 90px; height: 50px; border: 2px solid; background-color: {}'></div>"
    items = [{"html": box.format(color)} for color in ("#4dc7e8", "rgb(200, 30, 30)", "olive")]
    words = "<p id='x' style='color: rgb(1, 2, 3); position: fixed'>Look.</p>"
    link = lab.new("boxes", files=[], items=items, instructions=words, participants={"answers": 1})
    page = open_window()
    page.goto(link)
    told = page.locator(".prose p").first
    style = "one => { const s = getComputedStyle(one); return [s.color, s.position]; }"
    assert told.evaluate(style) == ["rgb(1, 2, 3)", "static"]
    eve = Participant(page)
    eve.press("Start")
    eve.question()
    assert set(eve.shown()) == {"#4dc7e8", "rgb(200, 30, 30)", "olive"}
    colors = set()
    for part in (".head", ".choice.left", ".choice.right"):
        shown = page.locator(f".question {part} .words div")
        size = shown.bounding_box()
        assert size is not None
        assert (size["width"], size["height"]) == (90, 50)
        colors.add(shown.evaluate("one => getComputedStyle(one).backgroundColor"))
    assert colors == {"rgb(77, 199, 232)", "rgb(200, 30, 30)", "rgb(128, 128, 0)"}


def test_a_phone_gets_small_copies(lab: Lab, open_window: OpenWindow) -> None:
    photos = [scene(1300, 700).effect_spread(k) for k in (3, 4, 5)]
    files = [(f"0{k}.jpg", saved(photo, "JPEG")) for k, photo in enumerate(photos)]
    link = lab.new("photos", files=files, participants={"answers": 1})
    for wide, small in ((360, "?width=480"), (1900, "?width=960")):
        page = open_window(viewport={"width": wide, "height": 640}, device_scale_factor=1)
        addresses: list[str] = []
        page.on("request", lambda request, seen=addresses: seen.append(request.url))
        page.goto(f"{link}?participant=p{wide}")
        fay = Participant(page)
        fay.press("Start")
        fay.question()
        shown = [address for address in addresses if "/media/" in address]
        assert shown
        assert all(address.endswith(small) for address in shown)
        assert page.locator(".head img").evaluate("one => one.naturalWidth") == int(small[7:])


def test_the_experimenter_reads_what_was_not_used(lab: Lab, open_window: OpenWindow) -> None:
    page = open_window()
    page.goto(f"{lab.url}/sign-in")
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="New experiment").click()
    files = [
        {"name": name, "mimeType": "image/png", "buffer": content}
        for name, content in color_files(3)
    ]
    files.append({"name": "README.txt", "mimeType": "text/plain", "buffer": b"Faces\nof us\n"})
    page.locator("#new-items").set_input_files(files)
    page.locator("#new-form [name=title]").fill("With a note")
    page.locator("#new-form .primary").click()
    expect(page.locator("body")).to_contain_text("not used: README.txt")
    page.get_by_role("link", name="Open the dashboard").click()
    page.wait_for_url("**/experiments/with-a-note")
