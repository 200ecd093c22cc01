"""Files that somebody sent: what they are served as, and that the server fetches nothing."""

import socket

import pytest

from tests.crowd.experiment.test_containers import MP3, mp4
from tests.crowd.web.conftest import png

MARKUP = b"<html><body onload=alert(1)><script>alert(1)</script></body></html>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'>"


def upload(experimenter, name, files, **settings):
    lines = [
        f"name: {name}",
        "items: items",
        *(f"{key}: {value}" for key, value in settings.items()),
    ]
    parts = [("settings", ("e.yaml", "\n".join(lines).encode()))]
    return experimenter.post("/api/v1/experiments", files=parts + [("items", one) for one in files])


PAGE = SVG + b"<foreignObject><body xmlns='http://www.w3.org/1999/xhtml' onload='alert(1)'/>"
BOTH = {
    "image/png": lambda words: b"\x89PNG\r\n\x1a\n" + png()[8:] + words,
    "video/mp4": lambda words: mp4(b"vide", content=words),
    "audio/mpeg": lambda words: MP3 + words,
    "image/svg+xml": lambda words: PAGE + b"</foreignObject></svg>" + words[len(MARKUP) :],
}


@pytest.mark.parametrize("kind", BOTH)
def test_a_file_that_is_also_a_page_is_no_page(site, experimenter, kind):
    files = [(f"{k}.html", BOTH[kind](MARKUP + b" " * k)) for k in range(3)]
    assert upload(experimenter, "both", files).status_code == 201
    query = (
        site.visitor().post("/api/v1/experiments/both/participants", json={}).json()["queries"][0]
    )
    reply = site.visitor().get(query["head"]["src"], headers={"accept": "text/html"})
    assert reply.headers["content-type"].partition(";")[0] == kind
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-security-policy"].endswith("sandbox")
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("start", [b"\0\0\0\x18ftypisom", b"\xff\xfb\x90\x00", SVG + b"<g>"])
def test_a_page_that_only_begins_as_a_film_sound_or_picture_is_refused(experimenter, start):
    files = [(f"{k}.html", start + MARKUP + b" " * k) for k in range(3)]
    assert upload(experimenter, "bad", files).status_code == 422


@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>" + SVG + b"&x;</svg>",
        b"<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY a 'aa'>]>" + SVG + b"&a;</svg>",
        "<svg onload=alert(1)>".encode("utf-16"),
        b"GIF89a/*" + MARKUP + b"*/=1;",  # 288 million pixels, by its header
    ],
)
def test_pictures_with_entities_or_absurd_sizes_are_refused(experimenter, content):
    files = [(f"{k}.svg", content + b" " * k) for k in range(3)]
    assert upload(experimenter, "bad", files).status_code == 422


def test_the_server_fetches_no_address_that_it_is_given(site, experimenter, monkeypatch):
    """An experimenter's addresses are for browsers: the server opens no connection to them."""

    def refuse(*arguments, **options):
        raise AssertionError(f"a connection to {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    inside = "http://169.254.169.254/latest/meta-data"
    html = f"<img src={inside}>", f"<video src={inside}></video>", f"<a href={inside}>c</a>"
    lines = "html,alt\n" + "".join(f"{one},{k}\n" for k, one in enumerate(html))
    made = upload(
        experimenter,
        "inside",
        [("l.csv", lines.encode())],
        media_hosts="['http://169.254.169.254']",
        completion=f"{{done: {{redirect: '{inside}'}}}}",
    )
    assert made.status_code == 201, made.text
    visitor, path = site.visitor(), "/api/v1/experiments/inside"
    assert visitor.get("/e/inside/").status_code == 200
    assert visitor.post(f"{path}/participants", json={}).status_code == 200
    saved = experimenter.get(f"{path}/downloads/archive.zip").content
    again = {"archive": ("a.zip", saved)}
    reply = experimenter.post("/api/v1/restore", files=again, data={"name": "again"})
    assert reply.status_code == 201, reply.text


@pytest.mark.parametrize(
    "name",
    ["../../x.png", "\u202egnp.png", "=1+1.png", "<img src=x onerror=alert(1)>.png", "a\nb.png"],
)
def test_names_of_files_are_shown_and_exported_as_text(site, experimenter, name):
    files = [(name, png(1)), ("b.png", png(2)), ("c.png", png(3))]
    assert upload(experimenter, "names", files).status_code == 201
    visitor, path = site.visitor(), "/api/v1/experiments/names"
    for query in visitor.post(f"{path}/participants", json={"count": 5}).json()["queries"]:
        body = {"query": query["id"], "winner": query["left"]["item"]}
        assert visitor.post(f"{path}/answers", json=body).status_code == 200
        for place in ("head", "left", "right"):
            assert query[place]["src"].startswith("/media/names/")
    for what in ("answers.csv", "answers-salmon.csv"):
        text = experimenter.get(f"{path}/downloads/{what}").text
        assert "\n=" not in text
        assert ",=" not in text
    head = experimenter.get(f"{path}/downloads/answers.csv").headers["content-disposition"]
    assert head == 'attachment; filename="names-answers.csv"'
