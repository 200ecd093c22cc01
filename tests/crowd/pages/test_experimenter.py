"""An experimenter signs in, creates, watches, downloads, deletes, restores: in a real browser."""

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import FilePayload, Page, Route, expect

from accelerando.crowd.client import Participant
from tests.crowd.pages.browsers import Ear
from tests.crowd.pages.lab import NAME, PASSWORD, Lab, color_files

OpenWindow = Callable[..., Page]


def payloads(count: int) -> list[FilePayload]:
    return [
        {"name": name, "mimeType": "image/png", "buffer": content}
        for name, content in color_files(count)
    ]


def sign_in(page: Page, lab: Lab, where: str = "/experiments") -> None:
    page.goto(f"{lab.url}{where}")
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_signs_in_and_out(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("401")
    page = open_window()
    page.goto(f"{lab.url}/experiments/first")
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    # To where they wanted to go in the first place.
    expect(page.get_by_role("heading", name="First study")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{lab.url}/experiments")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_creates_an_experiment_from_pictures(lab: Lab, open_window: OpenWindow) -> None:
    page = open_window()
    sign_in(page, lab)
    page.get_by_role("button", name="New experiment").click()
    page.get_by_label("Title").fill("Ähnliche Farben?")
    page.get_by_label("Items").set_input_files(payloads(6))
    expect(page.locator("#new-items-count")).to_contain_text("6 files")
    page.get_by_label("Questions per participant").fill("7")
    page.get_by_text("More settings").click()
    page.get_by_label("Completion code").fill("MADE-IT")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="Ähnliche Farben?")).to_be_visible()

    link = f"{lab.url}/e/ahnliche-farben/"
    expect(page.get_by_label("Link for participants")).to_have_value(link)
    summary = lab.http.get("/api/v1/experiments/ahnliche-farben").json()
    assert summary["items"] == 6
    visitor = open_window()
    visitor.goto(link)
    visitor.get_by_role("button", name="Start").click()
    visitor.locator(".question[data-query]").wait_for()
    expect(visitor.locator("#count")).to_have_text("0 of 7")


def test_all_problems_of_a_file_are_shown_at_once(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("422")
    page = open_window()
    sign_in(page, lab)
    page.get_by_role("button", name="New experiment").click()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("Choose the items first")
    page.get_by_label("Items").set_input_files(payloads(6))
    page.get_by_text("More settings").click()
    wrong = b"name: wrong\nparticipants:\n  answers: none\nskipp: true\n"
    page.get_by_label("Or a settings file").set_input_files(
        [{"name": "experiment.yaml", "mimeType": "application/yaml", "buffer": wrong}]
    )
    page.get_by_role("button", name="Create").click()
    problems = page.locator("#new-problems li")
    expect(problems).to_have_count(2)
    expect(page.locator("#new-problems")).to_contain_text("line 3")
    expect(page.locator("#new-problems")).to_contain_text("skipp")


def test_watches_an_experiment(lab: Lab, open_window: OpenWindow) -> None:
    lab.new("watched", title="Watched", samplers={"arr": {"class": "ARR"}})
    lab.take_part("watched", "anna", 25)
    page = open_window(viewport={"width": 1280, "height": 900})
    sign_in(page, lab, "/experiments/watched")
    answers = page.locator("#numbers div", has_text="Answers").first.locator("dd").first
    expect(answers).to_have_text("25")
    points = page.locator("#map .point")
    expect(points).to_have_count(12)

    lab.take_part("watched", "ben", 25)  # the page notices by itself
    expect(answers).to_have_text("50")
    expect(page.locator("#map-note")).to_contain_text("50")
    expect(page.get_by_role("row", name=re.compile("ben"))).to_contain_text("one side")

    before = points.nth(3).get_attribute("transform")
    page.get_by_role("button", name="Zoom in").click()
    zoomed = points.nth(3).get_attribute("transform")
    assert zoomed != before
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 80, box["y"] + 50)
    page.mouse.up()
    assert points.nth(3).get_attribute("transform") != zoomed
    page.get_by_role("button", name="Show all").click()
    points.last.locator(".picture").hover()  # the one on top of all others
    expect(page.locator("#map .chart-tip")).to_contain_text("asked about")

    for plot in ("activity", "arrivals", "response-time", "latency", "coverage"):
        assert page.locator(f"#{plot} rect.bar").count() > 0, plot
    expect(page.locator("#samplers li")).to_have_count(1)
    expect(page.locator("#health")).to_contain_text("working")


def test_pauses_and_blocks(lab: Lab, open_window: OpenWindow) -> None:
    lab.new("held", title="Held")
    lab.take_part("held", "carl", 3)
    page = open_window()
    sign_in(page, lab, "/experiments/held")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#state")).to_have_text("paused")
    assert lab.http.get("/api/v1/experiments/held").json()["state"] == "paused"
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#state")).to_have_text("running")
    page.get_by_role("button", name="Block carl").click()
    expect(page.get_by_role("button", name="Unblock carl")).to_be_visible()
    (carl,) = lab.http.get("/api/v1/experiments/held/participants").json()["participants"]
    assert carl["state"] == "blocked"
    # Sorting by a column keeps the row and says so to screen readers.
    page.get_by_role("button", name="Median time").click()
    expect(page.get_by_role("columnheader", name="Median time")).to_have_attribute(
        "aria-sort", "descending"
    )
    page.get_by_role("button", name="Delete carl").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("#people")).to_contain_text("Nobody has taken part yet")
    assert lab.answers("held") == []


def test_downloads_deletes_and_restores(lab: Lab, open_window: OpenWindow, tmp_path: Path) -> None:
    lab.new("kept", title="Kept for ever")
    lab.take_part("kept", "anna", 30)
    before = lab.answers("kept")
    page = open_window(accept_downloads=True)
    sign_in(page, lab, "/experiments/kept")
    page.get_by_role("button", name="Download").click()
    dialog = page.get_by_role("dialog")
    for link in dialog.get_by_role("link").all():
        title = link.inner_text()
        if title == "Embedding":
            continue  # only random queries here, there may be none yet
        with page.expect_download() as waiting:
            link.click()
        waiting.value.save_as(tmp_path / title)
        assert (tmp_path / title).stat().st_size > 0
    archive = (tmp_path / "Whole experiment").read_bytes()
    assert zipfile.ZipFile(io.BytesIO(archive)).testzip() is None
    dialog.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Delete", exact=True).click()
    gone = page.get_by_role("button", name="Delete for ever")
    expect(gone).to_be_disabled()
    page.get_by_label("Type kept to confirm").fill("kept")
    gone.click()
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    expect(page.get_by_role("link", name="Kept for ever")).to_have_count(0)

    page.get_by_role("button", name="Restore").first.click()
    page.get_by_label("Archive").set_input_files(
        [{"name": "kept.zip", "mimeType": "application/zip", "buffer": archive}]
    )
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_role("heading", name="Kept for ever")).to_be_visible()
    assert [row["query"] for row in lab.answers("kept")] == [row["query"] for row in before]


def test_what_is_not_there_is_said_kindly(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("404")
    page = open_window(color_scheme="dark")
    reply = page.goto(f"{lab.url}/e/never-made/")
    assert reply is not None
    assert reply.status == 404
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="To the start")).to_be_visible()
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert dark == "rgb(20, 22, 26)"


_BOXES = """
() => {
  const box = (one) => {
    const { left, top, right, bottom } = one.getBoundingClientRect();
    const name = `${one.tagName} ${one.id} ${one.getAttribute("class")}`;
    return { name, left, top, right, bottom };
  };
  const panels = [...document.querySelectorAll(".panels .panel")];
  const parts = "svg, .plot, .about, .facts, .chart-empty, .named-bars";
  return panels.map((panel) => ({
    panel: { ...box(panel), name: panel.getAttribute("aria-labelledby") },
    charts: [...panel.querySelectorAll(".plot svg.chart")]
      .map((chart) => [box(chart), box(chart.closest(".plot"))]),
    inside: [...panel.querySelectorAll(parts)]
      .filter((one) => one.getClientRects().length)
      .map(box),
  }));
}
"""
SIZES = [(1280, 720), (1366, 768), (1440, 900), (1536, 864), (1600, 900), (1920, 1080)]


def fits(inner: dict[str, float], outer: dict[str, float]) -> bool:
    """True if one box is inside of another one, up to a rounded pixel."""
    return (
        inner["left"] >= outer["left"] - 1
        and inner["right"] <= outer["right"] + 1
        and inner["top"] >= outer["top"] - 1
        and inner["bottom"] <= outer["bottom"] + 1
    )


def test_no_chart_of_the_dashboard_covers_another_panel(lab: Lab, open_window: OpenWindow) -> None:
    """A chart once kept its height when the sentence below it came and covered the next panel."""
    lab.new("wide")
    page = open_window(viewport={"width": 1280, "height": 720})

    def with_accuracies(route: Route) -> None:
        news = route.fetch().json()
        points = [
            {"answers": 100 * k, "accuracy": 0.6, "low": 0.55, "high": 0.65, "tested": 50}
            for k in range(1, 12)
        ]
        sentence = "About 1,200 more answers until 80 %, between 700 and 2,400. " * 2
        news["accuracy"] |= {"points": points, "latest": points[-1], "sentence": sentence}
        route.fulfill(json=news)

    page.route("**/api/v1/experiments/wide/dashboard", with_accuracies)
    sign_in(page, lab, "/experiments/wide")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        chart = page.locator("#accuracy svg")
        expect(chart).to_be_visible()
        page.wait_for_function(
            """() => {
              const plot = document.querySelector("#accuracy");
              const chart = plot.querySelector("svg");
              return Math.abs(chart.viewBox.baseVal.height - plot.clientHeight) <= 1
                && Math.abs(chart.viewBox.baseVal.width - plot.clientWidth) <= 1;
            }"""
        )
        found = page.evaluate(_BOXES)
        assert len(found) > 8
        for one in found:
            assert all(fits(chart, plot) for chart, plot in one["charts"]), (width, one["panel"])
            outside = [inner["name"] for inner in one["inside"] if not fits(inner, one["panel"])]
            assert outside == [], (width, one["panel"]["name"], outside)
        boxes = [one["panel"] for one in found]
        for k, a in enumerate(boxes):
            for b in boxes[k + 1 :]:
                beside = a["right"] <= b["left"] + 1 or b["right"] <= a["left"] + 1
                above = a["bottom"] <= b["top"] + 1 or b["bottom"] <= a["top"] + 1
                assert beside or above, (width, a["name"], b["name"])


def test_checks_completion_codes_and_uses_them_up(lab: Lab, open_window: OpenWindow) -> None:
    lab.new("paid", participants={"answers": 1}, completion={"done": {"code": "F-{code}"}})
    person = Participant(lab.url, "paid", {"participant": "anna"})
    query = person.next()
    assert query is not None
    person.answer(query, query.left)
    code = person.session["completion"]["code"]
    person.close()
    page = open_window()
    sign_in(page, lab, "/experiments/paid")
    page.get_by_role("button", name="Codes").click()
    page.get_by_label("Codes", exact=True).fill(f"{code}\nF-AAAA-BBBB-CCCC")
    found = page.locator("#codes-found")
    steps = [("Check", "valid"), ("Check and use up", "used up now"), ("Check", "used before")]
    for button, says in steps:
        page.get_by_role("button", name=button, exact=True).click()
        expect(found.get_by_role("row").nth(1)).to_contain_text(says)
        expect(found.get_by_role("row").nth(1)).to_contain_text("anna")
        expect(found.get_by_role("row").nth(2)).to_contain_text("unknown")
