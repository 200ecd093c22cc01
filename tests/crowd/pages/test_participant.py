"""A participant's whole session in a real browser: by mouse, by keyboard, on a phone."""

import csv
import io
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.crowd.pages.lab import Lab
from tests.crowd.pages.participant import Participant

OpenWindow = Callable[..., Page]

WHOLE = {
    "title": "Which colors look alike?",
    "instructions": "<p>Choose the color that is <b>more like</b> the one on top.</p>",
    "consent": {"text": "<p>You may stop at any time.</p>"},
    "practice": [{"head": 0, "left": 1, "right": 9, "winner": 1}],
    "breaks": {"every": 2, "text": "<p>Look out of the window.</p>"},
    "skip": True,
    "participants": {"answers": 4},
    "debrief": "<p>We study <i>color</i>.</p>",
    "completion": {
        "done": {"code": "CODE-77", "redirect": "https://panel.example/back?pid={PROLIFIC_PID}"}
    },
}


def test_a_whole_session_by_mouse(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("by-mouse", **WHOLE)
    page = open_window()
    anna = Participant(page)
    page.goto(f"{link}?PROLIFIC_PID=abc%2F1&STUDY_ID=s2&SESSION_ID=s3")

    anna.sees("You may stop at any time.")
    anna.press("I agree")
    anna.sees("more like")
    anna.press("Start")

    practice = anna.question()
    assert "Practice" in page.locator("#count").inner_text()
    anna.choose("right" if anna.numbers()[2] == 1 else "left")
    anna.sees("Right.")
    anna.press("Continue")
    anna.sees("That was the practice")
    anna.press("Start")

    last, chosen = practice, []
    for number in range(4):
        last = anna.question(after=last)
        assert page.locator("#count").inner_text() == f"{number} of 4"
        side = "left" if number % 2 else "right"
        if number == 0:
            anna.press("Skip")
            last = anna.question(after=last)
        head, left, right = anna.numbers()
        chosen.append((head, left if side == "left" else right))
        anna.choose(side)
        if number == 1:
            anna.sees("Look out of the window.")
            anna.press("Continue")

    anna.sees("We study color.")
    anna.sees("CODE-77")
    back = page.get_by_role("link", name="Finish and return")
    expect(back).to_have_attribute("href", "https://panel.example/back?pid=abc%2F1")
    page.goto(f"{lab.url}/health/live")  # away from the study, and back to its end
    page.go_back()
    anna.sees("CODE-77")

    rows = lab.answers("by-mouse")
    answered = [row for row in rows if row["kind"] == "query" and row["winner"]]
    assert [(int(row["head"]), int(row["winner"])) for row in answered] == chosen
    assert all(0 < float(row["response_time"]) < 60 for row in answered)
    assert all(0 <= float(row["network_latency"]) < 60 for row in answered)
    skips = lab.http.get("/api/v1/experiments/by-mouse/downloads/skips.csv").text.splitlines()
    assert len(skips) == 2  # its header, and one skip
    people = lab.http.get("/api/v1/experiments/by-mouse/downloads/participants.csv").text
    (anna_row,) = csv.DictReader(io.StringIO(people))
    assert anna_row["participant"] == anna_row["parameter_PROLIFIC_PID"] == "abc/1"
    assert anna_row["parameter_STUDY_ID"] == "s2"
    assert anna_row["outcome"] == "done"
    assert anna_row["consent_version"] == "1"


def test_by_keyboard_alone(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("by-keyboard", consent=WHOLE["consent"], participants={"answers": 5})
    page = open_window(reduced_motion="reduce")
    ben = Participant(page)
    page.goto(link)
    ben.sees("You may stop at any time.")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "I agree"
    page.keyboard.press("Enter")
    ben.sees("Choose the one below")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    last, wanted = None, []
    for number in range(5):
        last = ben.question(after=last)
        _, left, right = ben.numbers()
        side = "Left" if number % 2 else "Right"
        wanted.append(left if side == "Left" else right)
        page.keyboard.down(f"Arrow{side}")
        page.keyboard.down(f"Arrow{side}")  # held: the browser repeats it
        if number == 2:
            # Still held when the next question has come: it must not answer that one, too.
            ben.question(after=last)
            page.keyboard.down(f"Arrow{side}")
        page.keyboard.up(f"Arrow{side}")
    ben.sees("Thank you")
    rows = [row for row in lab.answers("by-keyboard") if row["kind"] == "query"]
    assert [int(row["winner"]) for row in rows] == wanted
    # A screen reader is told of every question.
    assert "Item to compare with" in page.locator("#announcement").inner_text()


def test_on_a_phone(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("on-a-phone", participants={"answers": 3}, skip=True)
    page = open_window(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    cleo = Participant(page)
    page.goto(link)
    page.get_by_role("button", name="Start").tap()
    last = None
    for turn in range(3):
        last = cleo.question(after=last)
        # Everything is on the screen, upright and on its side, without scrolling.
        for size in ((360, 640), (640, 360)):
            page.set_viewport_size({"width": size[0], "height": size[1]})
            for part in (".head img", ".choice.left img", ".choice.right img", ".skip"):
                box = page.locator(f".question {part}").bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["y"] >= 0
                assert box["x"] + box["width"] <= size[0]
                assert box["y"] + box["height"] <= size[1], (part, size)
                if part != ".skip":
                    assert min(box["width"], box["height"]) > 60
        page.set_viewport_size({"width": 360, "height": 640})
        page.locator(f".choice.{'left' if turn else 'right'}").tap()
    cleo.sees("Thank you")
    assert len(lab.answers("on-a-phone")) == 3
    # In the middle of the session the device was written down.
    people = lab.http.get("/api/v1/experiments/on-a-phone/downloads/participants.csv").text
    assert "phone" in people


def test_says_no_and_withdraws(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("says-no", consent=WHOLE["consent"], participants={"answers": 9})
    refuser = Participant(open_window())
    refuser.page.goto(link)
    refuser.press("I do not agree")
    refuser.sees("You have not agreed")
    refuser.page.reload()
    refuser.sees("You may stop at any time.")  # nothing is kept: they are asked again

    leaver = Participant(open_window())
    leaver.page.goto(link)
    leaver.press("I agree")
    leaver.press("Start")
    first = leaver.question()
    leaver.choose("left")
    leaver.question(after=first)
    leaver.press("Withdraw and delete my answers")
    dialog = leaver.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    leaver.press("Withdraw and delete my answers")
    dialog.get_by_role("button", name="Withdraw").click()
    leaver.sees("Your answers are not used and will be deleted")
    assert lab.answers("says-no") == []


def test_a_pseudonym_is_stored_and_the_way_back_still_known(
    lab: Lab, open_window: OpenWindow
) -> None:
    link = lab.new(
        "pseudonym",
        participants={"answers": 1, "pseudonyms": True, "returning": "refuse"},
        completion={"done": {"redirect": "https://panel.example/?id={PROLIFIC_PID}"}},
    )
    page = open_window()
    gina = Participant(page)
    page.goto(f"{link}?PROLIFIC_PID=very%20secret&STUDY_ID=s")
    gina.press("Start")
    gina.question()
    gina.choose("left")
    back = page.get_by_role("link", name="Finish and return")
    expect(back).to_have_attribute("href", "https://panel.example/?id=very%20secret")
    people = lab.http.get("/api/v1/experiments/pseudonym/downloads/participants.csv").text
    assert people.count("\n") == 2
    assert "secret" not in people


def test_in_another_language_with_words_that_look_like_markup(
    lab: Lab, open_window: OpenWindow
) -> None:
    attack = "<img src=x onerror=document.title='hacked'>"
    lines = "\n".join(["text", f'"{attack}"', "Apfel", "Birne", "Quitte"])
    link = lab.new(
        "auf-deutsch",
        files=[("items.csv", lines.encode())],
        title="Ähnlichkeit </script><script>document.title='hacked'</script>",
        language="de",
        texts={"start": "Los geht’s", "question": "Was ist ähnlicher?", "left": "Links"},
        participants={"answers": 6},
    )
    page = open_window()
    dora = Participant(page)
    page.goto(link)
    assert page.locator("html").get_attribute("lang") == "de"
    dora.press("Los geht’s")
    last, seen = None, set()
    for _ in range(6):
        last = dora.question(after=last)
        dora.sees("Was ist ähnlicher?")
        seen |= {
            page.locator(f".question .{part} .words").inner_text() for part in ("head", "left")
        }
        assert page.locator(".question img").count() == 0
        dora.choose("left")
    dora.sees("Thank you")
    assert attack in seen
    assert page.title().startswith("Ähnlichkeit </script>")


def test_written_from_right_to_left_left_is_still_left(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("right-to-left", language="ar", participants={"answers": 2})
    page = open_window()
    farah = Participant(page)
    page.goto(link)
    assert page.locator("html").get_attribute("dir") == "rtl"
    farah.press("Start")
    last, wanted = None, []
    for key in ("ArrowLeft", "ArrowRight"):
        last = farah.question(after=last)
        boxes = [page.locator(f".choice.{side}").bounding_box() for side in ("left", "right")]
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
        wanted.append(farah.numbers()[1 if key == "ArrowLeft" else 2])
        page.keyboard.press(key)
    farah.sees("Thank you")
    rows = [row for row in lab.answers("right-to-left") if row["kind"] == "query"]
    assert [int(row["winner"]) for row in rows] == wanted
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
