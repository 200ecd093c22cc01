"""Sessions of experimenters."""


def test_signing_out_ends_the_session_on_the_server(site, experimenter):
    cookie = experimenter.cookies["accelerando_session"]
    assert experimenter.delete("/api/v1/session").status_code == 204
    other = site.visitor()
    other.cookies.set("accelerando_session", cookie)
    assert other.get("/api/v1/experiments").status_code == 401
