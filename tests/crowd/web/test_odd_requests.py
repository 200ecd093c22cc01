"""Requests that no page sends: odd hosts, paths, JSON, forms, cookies and headers."""

import itertools

from starlette.requests import HTTPConnection

from accelerando.crowd.store.schema import answer as answers
from accelerando.crowd.web import roles
from tests.crowd.web.conftest import API, begin
from tests.crowd.web.test_intruders import person
from tests.crowd.web.test_strangers import rows


def test_what_a_request_may_do_depends_on_its_path_and_on_nothing_of_its_host(site, monkeypatch):
    """Starlette once put ``Host`` into the address and took the path out of that again."""

    def told(request):
        raise AssertionError("request.url was asked: it contains the Host header")

    monkeypatch.setattr(HTTPConnection, "url", property(told))
    monkeypatch.setattr(HTTPConnection, "base_url", property(told))
    site.add("name: other\nitems: 8\n")
    eve = person(site, "eve", "owner", "other")
    for host in ("x/api/v1/session?", "x/api/v1/session#", "u@x/api/v1/session?", "[", "", "x y"):
        to = {"host": host}
        assert eve.post(f"{API}/pause", headers=to).status_code == 404, host
        assert eve.get("/experiments/eggs", headers=to).status_code == 404, host
        page = site.visitor().get("/experiments", headers=to, follow_redirects=False)
        assert page.headers["location"] == "/sign-in?next=/experiments"
        page = site.visitor().get("/e/eggs?a=1&b=%0d%0a", headers=to, follow_redirects=False)
        assert page.headers["location"] == "/e/eggs/?a=1&b=%0d%0a"
        form = {"name": "eve", "password": "x", "csrf": "x"}
        assert site.visitor().post("/sign-in", data=form, headers=to).status_code == 403
    assert begin(site.visitor())["queries"]


def test_an_experiment_may_be_called_like_a_part_of_an_address(site):
    """An editor of the experiment "members" could once not pause it."""
    editor, viewer = person(site, "editor"), person(site, "viewer")
    for name in ("members", "dashboard", "queries", "session", "downloads"):
        site.add(f"name: {name}\nitems: 8\n")
        with site.store.write() as connection:
            for role in ("editor", "viewer"):
                roles.give(connection, name, role, role)
        path = f"/api/v1/experiments/{name}"
        assert editor.post(f"{path}/pause").status_code == 200
        assert viewer.post(f"{path}/resume").status_code == 403
        assert editor.put(f"{path}/members/viewer", json={"role": "owner"}).status_code == 403
        assert editor.request("DELETE", path, json={"confirm": name}).status_code == 403
        assert site.visitor().get(path).status_code == 401


PATHS = [
    f"{API}%2fpause", "/api/v1/experiments//eggs", f"/{API}", API.upper(), f"{API};x=1", f"{API}/",
    f"{API}%00", f"{API}%0a", f"{API}%20", f"{API}%c0%af", "/api/v1/experiments/ｅggs",
    f"/api/v1/experiments/{'a' * 60_000}", f"{API}/downloads/..%2f..%2fetc%2fpasswd",
    f"{API}/downloads/answers.csv%0a", "/experiments/eggs%0a", "/experiments/eggs%2f",
    "/e/eggs%0a/", "/e/eggs%00", "/e/%65ggs%2f..%2f", "/%ff%fe", "/static//etc/passwd",
    "/static/%2e%2e/app.py", "/static/..%5capp.py", "/static/%c0%ae%c0%ae/app.py",
    f"/media/eggs/{'0' * 64}.png%0a", f"/media/eggs%2f..%2fother/{'0' * 64}.png",
]  # fmt: skip


def test_no_other_way_to_write_an_address_leads_anywhere(site, experimenter):
    quiet = site.visitor(raise_server_exceptions=False, follow_redirects=False)
    quiet.cookies.update(experimenter.cookies)
    for path in PATHS:
        reply = quiet.get(path)
        assert reply.status_code in (404, 405, 422), (path, reply.text)
        assert reply.headers["cache-control"] == "no-store"
    stranger = site.visitor(follow_redirects=False)
    for path in ("/api/v1/./experiments/eggs", f"{API}/x/..", "/api/v1/experiments/%65ggs"):
        assert stranger.get(path).status_code == 401, path


ODD_JSON = {
    "twice, and the last one counts": '{"query": "%(query)s", "winner": %(left)s, "winner": 7000}',
    "not a number": '{"query": "%(query)s", "winner": NaN}',
    "a time without end": '{"query": "%(query)s", "winner": %(left)s, "response_time": Infinity}',
    "a float without end": '{"query": "%(query)s", "winner": %(left)s, "response_time": 1e400}',
    "6,000 digits": '{"query": "%(query)s", "winner": ' + "9" * 6000 + "}",
    "6,000 digits of a time": '{"query": "%(query)s", "winner": %(left)s, "response_time": '
    + "9" * 6000 + "}",
    "a number as query": '{"query": %(query)s, "winner": %(left)s}',
    "brackets": "[" * 60_000,
    "closed brackets": "[" * 30_000 + "]" * 30_000,
    "braces": '{"a":' * 9_000 + "1" + "}" * 9_000,
    "brackets in a field": '{"query": ' + "[" * 20_000 + "]" * 20_000 + "}",
    "something behind": '{"query": "%(query)s", "winner": %(left)s} x',
    "a list": '[{"query": "%(query)s", "winner": %(left)s}]',
    "a word": '"x"', "nothing": "", "null": "null", "true": "true",
    "no UTF-8": b'{"query": "\xff", "winner": null}',
    "UTF-16": '{"query": "1", "winner": null}'.encode("utf-16"),
}  # fmt: skip
KINDS = ["application/json", "application/json; charset=utf-16", "application/vnd.api+json",
         "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
         "multipart/form-data; boundary=x"]  # fmt: skip


def test_json_that_no_page_sends_is_refused_and_stores_nothing(site):
    """By the fast path, which takes the first content type only, and by the routes."""
    client = site.visitor(raise_server_exceptions=False)
    query = begin(client)["queries"][0]
    values = {"query": query["id"], "left": query["left"]["item"]}
    for name, body in ODD_JSON.items():
        body = body if isinstance(body, bytes) or "%(" not in body else body % values
        for path, kind in itertools.product(("answers", "queries/replace"), KINDS):
            reply = client.post(f"{API}/{path}", content=body, headers={"content-type": kind})
            assert reply.status_code in (400, 404, 422), (name, path, kind, reply.text)
    assert rows(site, answers) == [0]
    right = '{"query": "%(query)s", "winner": 7000, "winner": %(left)s}'
    kind = {"content-type": KINDS[0]}
    reply = client.post(f"{API}/answers", content=right % values, headers=kind)
    assert reply.status_code == 200, "the same query is still open"


def test_a_body_in_another_type_is_not_read_as_json(site, experimenter):
    """A form of another site can send text/plain without asking first."""
    for method, path in (
        ("POST", "/api/v1/session"),
        ("POST", "/api/v1/account/tokens"),
        ("POST", "/api/v1/accounts"),
        ("POST", f"{API}/participants"),
        ("POST", f"{API}/links"),
        ("PUT", f"{API}/members/experimenter"),
        ("DELETE", API),
    ):
        body = b'{"name": "tom", "password": "words for tom", "confirm": "eggs", "ids": []}'
        for kind in KINDS[3:]:
            reply = experimenter.request(method, path, content=body, headers={"content-type": kind})
            assert reply.status_code in (400, 422), (path, kind, reply.text)


def parts(*found):
    middle = b"".join(b"--x\r\n" + head + b"\r\n\r\n" + data + b"\r\n" for head, data in found)
    return middle + b"--x--\r\n"


NAMED = b"Content-Disposition: form-data; name="
FILE = NAMED + b'"settings"; filename="a.yaml"'
MADE = b"name: made\nitems: 5\n"
FORMS = {
    "3,000 fields": parts(*[(NAMED + b'"f%d"' % k, b"1") for k in range(3000)]),
    "3,000 files": parts(*[(NAMED + b'"items"; filename="%d.png"' % k, b"") for k in range(3000)]),
    "a part without a name": parts((b"Content-Disposition: form-data", b"1")),
    "a part without a disposition": parts((b"X: y", MADE)),
    "a head without end": parts((b"X: " + b"y" * 200_000, MADE)),
    "20,000 heads": parts((b"\r\n".join(b"X%d: y" % k for k in range(20_000)), MADE)),
    "a field in place of a file": parts((NAMED + b'"settings"', MADE)),
    "something before": b"junk" * 1000 + parts((FILE, MADE)),
    "a name of 5,000 signs": parts((FILE.replace(b"a.yaml", b"a" * 5000), MADE)),
    "another encoding": parts((FILE + b"\r\nContent-Transfer-Encoding: base64", b"bmFtZTogeA==")),
    "a name that is a path": parts((FILE, MADE), (NAMED + b'"name"', b"../eggs")),
    "two names, the last one taken": parts(
        (FILE, MADE), (NAMED + b'"name"', b"made"), (NAMED + b'"name"', b"eggs")
    ),
    "bytes as a name": parts((FILE, MADE), (NAMED + b'"name"', b"\xff\xfe")),
}


def test_forms_that_no_page_sends_make_no_experiment(experimenter):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    for name, form in FORMS.items():
        for path in ("/api/v1/experiments", "/api/v1/restore"):
            reply = experimenter.post(path, content=form, headers=kind)
            assert reply.status_code in (400, 409, 422), (name, reply.text)
    found = experimenter.get("/api/v1/experiments").json()["experiments"]
    assert [one["name"] for one in found] == ["eggs"]
    right = parts((FILE, MADE))
    made = experimenter.post("/api/v1/experiments", content=right, headers=kind)
    assert made.status_code == 201, "the same without what is wrong"


def test_two_cookies_of_one_name_are_one_session_or_none(site, experimenter):
    good = experimenter.cookies["accelerando_session"]
    for line in ("{0}; {1}", "{1}; {0}"):
        cookies = line.format(f"accelerando_session={good}", "accelerando_session=planted")
        reply = site.visitor().get(API, headers={"cookie": cookies})
        assert reply.status_code in (200, 401)
    many = "; ".join(f"accelerando_session{k}=x" for k in range(3000))
    assert site.visitor().get(API, headers={"cookie": many}).status_code == 401


def test_pages_and_data_of_people_who_signed_in_are_kept_by_no_cache(site, experimenter):
    begin(site.visitor())
    for path in ("/experiments", "/experiments/eggs", "/experiments-account", "/sign-in", API,
                 "/api/v1/session", "/api/v1/accounts", "/api/v1/audit", f"{API}/participants",
                 f"{API}/dashboard", f"{API}/downloads/answers.csv", f"{API}/downloads/archive.zip",
                 f"{API}/members", "/e/eggs/", f"{API}/queries?count=2"):  # fmt: skip
        reply = experimenter.get(path, headers={"range": "bytes=0-3", "if-none-match": "*"})
        assert reply.status_code in (200, 401), path
        assert reply.headers["cache-control"] == "no-store", path
        assert "etag" not in reply.headers
