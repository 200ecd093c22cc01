"""An account in a real browser: password, sessions, tokens, codes of an app, others, roles."""

import time
from collections.abc import Callable

import httpx
from playwright.sync_api import Page, expect

from accelerando.crowd.web.totp import code_at
from tests.crowd.pages.browsers import Ear
from tests.crowd.pages.lab import NAME, PASSWORD, Lab

OpenWindow = Callable[..., Page]
FIRST, OWN = "given by somebody else", "chosen by myself alone"


def sign_in(page: Page, lab: Lab, name: str, password: str, where: str, code: str = "") -> None:
    page.goto(f"{lab.url}/sign-in?next={where}")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_label("Code of your app").fill(code)
    page.get_by_role("button", name="Sign in").click()


def colleague(lab: Lab, name: str, **more: bool) -> None:
    """Make an account anew."""
    lab.http.delete(f"/api/v1/accounts/{name}")
    body = {"name": name, "password": FIRST, **more}
    lab.http.post("/api/v1/accounts", json=body).raise_for_status()


def settled(lab: Lab, name: str) -> None:
    """Make an account whose owner has chosen a password."""
    colleague(lab, name)
    with httpx.Client(base_url=lab.url) as http:
        made = http.post("/api/v1/session", json={"name": name, "password": FIRST})
        body = {"present": FIRST, "new": OWN}
        headers = {"X-CSRF-Token": made.json()["csrf"]}
        http.put("/api/v1/account/password", json=body, headers=headers).raise_for_status()


def test_a_password_of_somebody_else_must_be_changed_first(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("422", "403")
    colleague(lab, "newcomer")
    page = open_window()
    sign_in(page, lab, "newcomer", FIRST, "/experiments/first")
    expect(page.get_by_role("status")).to_contain_text("choose your own first")
    expect(page.get_by_role("heading", name="Tokens for programs")).to_have_count(0)
    page.goto(f"{lab.url}/experiments")
    expect(page.get_by_role("status")).to_contain_text("choose your own first")
    page.get_by_label("Present password").fill(FIRST)
    page.get_by_label("New password").fill("password1")
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_role("alert")).to_contain_text("tried first")
    page.get_by_label("Present password").fill("not this one")
    page.get_by_label("New password").fill(OWN)
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_role("alert")).to_contain_text("present password is wrong")
    page.get_by_label("Present password").fill(FIRST)
    page.get_by_label("New password").fill(OWN)
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, lab, "newcomer", OWN, "/experiments")
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    expect(page.get_by_role("link", name="First study")).to_have_count(0)


def test_sessions_are_listed_and_ended(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("401")
    settled(lab, "traveler")
    left_behind, page = open_window(), open_window()
    sign_in(left_behind, lab, "traveler", OWN, "/experiments-account")
    expect(left_behind.locator("#sessions tbody tr")).to_have_count(1)
    sign_in(page, lab, "traveler", OWN, "/experiments-account")
    rows = page.locator("#sessions tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="this one")).to_have_count(1)
    rows.filter(has_not_text="this one").get_by_role("button").click()
    expect(rows).to_have_count(1)
    left_behind.goto(f"{lab.url}/experiments")
    expect(left_behind.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{lab.url}/experiments")
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()


def test_tokens_are_made_shown_once_and_revoked(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("404")
    lab.new("for-robots")
    page = open_window()
    sign_in(page, lab, NAME, PASSWORD, "/experiments-account")
    page.get_by_label("Name of the token").fill("<b>night shift</b>")
    page.get_by_label("Only for the experiment").fill("no-such")
    page.get_by_role("button", name="Make a token").click()
    expect(page.get_by_role("alert")).to_contain_text("no-such")
    page.get_by_label("Only for the experiment").fill("for-robots")
    page.get_by_label("Days until it ends").fill("3")
    page.get_by_role("button", name="Make a token").click()
    row = page.locator("#tokens tbody tr", has_text="<b>night shift</b>")
    expect(row).to_contain_text("for-robots")
    token = page.locator("#token-secret").inner_text()
    assert token.startswith("accelerando_")
    asked = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=lab.url, headers=asked) as robot:
        assert robot.get("/api/v1/experiments/for-robots/dashboard").status_code == 200
        assert robot.get("/api/v1/experiments/first").status_code == 404
        assert robot.post("/api/v1/experiments/for-robots/pause").status_code == 403
        page.reload()
        expect(row).to_be_visible()
        assert token not in page.content()
        row.get_by_role("button").click()
        expect(row).to_have_count(0)
        assert robot.get("/api/v1/experiments/for-robots/dashboard").status_code == 401


def test_codes_of_an_app(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("401", "422")
    settled(lab, "careful")
    page = open_window()
    sign_in(page, lab, "careful", OWN, "/experiments-account")
    page.get_by_role("button", name="Set up an app").click()
    expect(page.locator("#codes-key")).not_to_be_empty()  # the server makes it
    expect(page.locator("#codes-key")).to_be_visible()
    key = page.locator("#codes-key").inner_text()
    page.get_by_label("Code that the app shows").fill("000000")
    page.get_by_label("Password to confirm").fill(OWN)
    page.get_by_role("button", name="Demand codes").click()
    expect(page.get_by_role("alert")).to_contain_text("does not belong to this key")
    step = int(time.time()) // 30
    page.get_by_label("Code that the app shows").fill(code_at(key, step))
    page.get_by_role("button", name="Demand codes").click()
    expect(page.locator("#codes-state")).to_have_text("Signing in needs a code of your app.")
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, lab, "careful", OWN, "/experiments-account")
    expect(page.get_by_role("alert")).to_contain_text("type the code")
    # A code counts once: this is the one after it, which clocks may differ by.
    sign_in(page, lab, "careful", OWN, "/experiments-account", code_at(key, step))
    expect(page.get_by_role("alert")).to_contain_text("used before")
    sign_in(page, lab, "careful", OWN, "/experiments-account", code_at(key, step + 1))
    expect(page.locator("#codes-state")).to_have_text("Signing in needs a code of your app.")
    assert key not in page.content()


def test_administrators_manage_accounts(lab: Lab, open_window: OpenWindow, ear: Ear) -> None:
    ear.forgive("422")
    lab.http.delete("/api/v1/accounts/assistant")
    page = open_window()
    sign_in(page, lab, NAME, PASSWORD, "/experiments-account")
    page.get_by_label("Name of the account").fill("assistant")
    page.get_by_label("First password").fill("password1")
    page.get_by_role("button", name="Make an account").click()
    expect(page.get_by_role("alert")).to_contain_text("tried first")
    page.get_by_label("First password").fill(FIRST)
    page.get_by_role("button", name="Make an account").click()
    row = page.locator("#accounts tbody tr", has_text="assistant")
    expect(row).to_contain_text("experimenter")
    own = page.locator("#accounts tbody tr", has_text="administrator").first
    expect(own.get_by_role("button")).to_have_count(0)
    row.get_by_role("button").click()
    expect(row).to_have_count(0)


def test_owners_give_roles_and_pages_offer_what_a_role_may_do(
    lab: Lab, open_window: OpenWindow, ear: Ear
) -> None:
    ear.forgive("404", "422")
    settled(lab, "helper")
    lab.new("shared", title="Shared")
    lab.take_part("shared", "anna", 2)
    page, theirs = open_window(), open_window()
    sign_in(theirs, lab, "helper", OWN, "/experiments/shared")
    expect(theirs.get_by_role("heading", level=1)).to_contain_text("Not found")
    sign_in(page, lab, NAME, PASSWORD, "/experiments/shared")
    page.get_by_role("button", name="Access").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Account").fill("nobody-here")
    dialog.get_by_role("button", name="Give access").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nobody-here")

    offers = {
        "viewer": [],
        "editor": ["Pause", "Block anna"],
        "owner": ["Pause", "Block anna", "Delete anna", "Access", "Delete"],
    }
    every = offers["owner"]
    for role, allowed in offers.items():
        dialog.get_by_label("Account").fill("helper")
        dialog.get_by_label("Role").select_option(role)
        dialog.get_by_role("button", name="Give access").click()
        expect(dialog.get_by_role("row", name="helper")).to_contain_text(role)
        theirs.goto(f"{lab.url}/experiments/shared")
        expect(theirs.get_by_role("row", name="anna")).to_be_visible()
        shown = [
            what for what in every if theirs.get_by_role("button", name=what, exact=True).count()
        ]
        assert shown == allowed
    dialog.get_by_role("button", name="Remove helper").click()
    expect(dialog.get_by_role("row", name="helper")).to_have_count(0)
    theirs.reload()
    expect(theirs.get_by_role("heading", level=1)).to_contain_text("Not found")
