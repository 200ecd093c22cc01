"""Lost connections, double clicks, reloads, two tabs: no answer is lost, none is doubled."""

import json
from collections import Counter
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

from tests.crowd.pages.browsers import Ear
from tests.crowd.pages.lab import Lab
from tests.crowd.pages.participant import Participant

OpenWindow = Callable[..., Page]


def stored(lab: Lab, name: str) -> list[str]:
    """Query ids of the stored answers; none twice."""
    ids = [row["query"] for row in lab.answers(name)]
    assert max(Counter(ids).values(), default=1) == 1
    return ids


def all_sent(page: Page) -> None:
    """No answer waits in the page any more."""
    expect(page.locator("body")).to_have_attribute("data-waiting", "0")


def test_the_network_is_cut_in_the_middle(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("ERR_INTERNET_DISCONNECTED")
    link = lab.new("cut", participants={"answers": 6})
    page = open_window()
    anna = Participant(page)
    page.goto(link)
    anna.press("Start")
    first = anna.question()
    anna.choose("left")
    last = anna.question(after=first)
    all_sent(page)

    page.context.set_offline(True)
    answered = [first]
    banner = page.locator("#connection")
    for _ in range(2):  # the page has the next question already
        answered.append(last)
        anna.choose("right")
        if len(answered) == 2:
            last = anna.question(after=last)
    expect(banner).to_be_visible()
    anna.sees("Sending")
    waiting = json.loads(page.evaluate("localStorage['accelerando.outbox.cut']"))
    assert [entry["body"]["query"] for entry in waiting] == answered[1:]
    assert stored(lab, "cut") == answered[:1]

    page.context.set_offline(False)
    while not page.locator(".reading").is_visible():
        last = anna.question(after=last)
        answered.append(last)
        anna.choose("left")
        page.locator(f'.question[data-query]:not([data-query="{last}"]), .reading').first.wait_for()
    anna.sees("Thank you")
    expect(banner).to_be_hidden()
    assert sorted(stored(lab, "cut")) == sorted(answered)
    assert len(answered) == 6
    assert page.evaluate("localStorage['accelerando.outbox.cut'] ?? null") is None


def test_the_acknowledgement_is_lost(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    """The server stored the answer, the page never heard so: it sends it again, stored once."""
    ear.forgive("ERR_FAILED")
    link = lab.new("unheard", participants={"answers": 3})
    page = open_window()
    sent: list[str] = []

    def swallow(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or "{}")["query"])
        if len(sent) in (1, 2):
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/answers", swallow)
    ben = Participant(page)
    page.goto(link)
    ben.press("Start")
    last = None
    for _ in range(3):
        last = ben.question(after=last)
        ben.choose("right")
    ben.sees("Thank you")
    assert sent[0] == sent[1] == sent[2]
    assert len(stored(lab, "unheard")) == 3


def test_closed_while_offline_and_opened_again(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("ERR_FAILED", "ERR_INTERNET_DISCONNECTED")
    link = lab.new("closed", participants={"answers": 5})
    page = open_window()
    cleo = Participant(page)
    page.goto(link)
    cleo.press("Start")
    first = cleo.question()
    page.route("**/answers", lambda route: route.abort())
    cleo.choose("left")
    cleo.question(after=first)
    assert stored(lab, "closed") == []
    context = page.context
    page.close(run_before_unload=False)

    page = context.new_page()
    cleo = Participant(page)
    page.goto(link)
    second = cleo.question(after=first)
    assert second != first
    all_sent(page)
    assert stored(lab, "closed") == [first]


def test_double_click_reload_and_back_button(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("hasty", participants={"answers": 4})
    page = open_window()
    dora = Participant(page)
    page.goto(link)
    dora.press("Start")
    first = dora.question()
    page.locator(".choice.left").dblclick()
    second = dora.question(after=first)
    all_sent(page)
    assert stored(lab, "hasty") == [first]

    page.reload()
    assert dora.question() == second  # goes on where they were, without the instructions
    assert page.locator("#count").inner_text() == "1 of 4"
    page.goto("about:blank")
    page.go_back()
    assert dora.question() == second
    dora.choose("right")
    third = dora.question(after=second)
    all_sent(page)
    assert sorted(stored(lab, "hasty")) == sorted([first, second])
    assert third not in (first, second)


def test_two_tabs(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("twice", participants={"answers": 3})
    old = open_window()
    emil = Participant(old)
    old.goto(link)
    emil.press("Start")
    query = emil.question()

    new = old.context.new_page()
    new.goto(link)
    in_new = Participant(new)
    emil.sees("open in another tab")
    new.get_by_role("button", name="Start").click()
    assert in_new.question() == query  # one participant, one open query
    in_new.choose("left")
    after = in_new.question(after=query)

    old.bring_to_front()
    emil.press("Continue here")
    in_new.sees("open in another tab")
    assert emil.question(after=query) == after
    last = after
    emil.choose("left")
    emil.question(after=last)
    emil.choose("left")
    emil.sees("Thank you")
    assert len(stored(lab, "twice")) == 3


def test_leftovers_of_another_participant_are_stored_for_them(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    """A shared computer: the answers that anna could not send are hers, whoever sits there now."""
    ear.forgive("ERR_FAILED")
    link = lab.new("shared", participants={"answers": 5})
    page = open_window()
    page.goto(f"{link}?participant=anna")
    anna = Participant(page)
    anna.press("Start")
    query = anna.question()
    page.route("**/answers", lambda route: route.abort())
    anna.choose("left")
    anna.question(after=query)
    context = page.context
    page.close(run_before_unload=False)

    page = context.new_page()
    page.goto(f"{link}?participant=ben")
    ben = Participant(page)
    ben.sees("Choose the one below")  # a newcomer reads the instructions
    all_sent(page)
    rows = lab.answers("shared")
    assert [(row["participant"], row["query"]) for row in rows] == [("anna", query)]


def test_a_pause_stops_nobody_for_good(lab: Lab, open_window: OpenWindow) -> None:
    link = lab.new("paused", participants={"answers": 3})
    page = open_window()
    page.clock.install()
    flora = Participant(page)
    lab.http.post("/api/v1/experiments/paused/pause").raise_for_status()
    page.goto(link)
    flora.sees("The experiment is paused.")
    lab.http.post("/api/v1/experiments/paused/resume").raise_for_status()
    page.clock.fast_forward(6_000)
    page.locator(".question, .reading").first.wait_for()
