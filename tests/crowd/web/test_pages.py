"""HTML pages."""

from tests.crowd.web.conftest import PASSWORD


def test_the_form_signs_in_and_leads_to_the_page_that_was_asked_for(site):
    client = site.visitor()
    page = client.get("/experiments/eggs")
    assert page.url.path == "/sign-in"
    token = client.cookies["accelerando_csrf"]
    form = {
        "name": "experimenter",
        "password": PASSWORD,
        "csrf": token,
        "next": "/experiments/eggs",
    }
    done = client.post("/sign-in", data=form)
    assert done.status_code == 200
    assert done.url.path == "/experiments/eggs"
    assert "accelerando_session" in client.cookies
