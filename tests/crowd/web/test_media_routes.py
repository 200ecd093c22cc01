"""Images, videos and sounds over HTTP."""

import tracemalloc

import pytest

from accelerando.crowd.store import Store, experiments
from accelerando.crowd.store import media as files
from accelerando.crowd.store.schema import media
from tests.crowd.experiment.pictures import saved, scene
from tests.crowd.web.conftest import png


def test_pictures_come_with_their_type_and_in_pieces(site):
    site.add("name: shown\n", [(f"{k}.png", png(k)) for k in range(4)])
    client = site.visitor()
    session = client.post("/api/v1/experiments/shown/participants", json={}).json()
    head = session["queries"][0]["head"]
    assert head["kind"] == "image"
    found = client.get(head["src"])
    assert found.headers["content-type"] == "image/png"
    assert "private, max-age=300" in found.headers["cache-control"]
    assert "sandbox" in found.headers["content-security-policy"]
    part = client.get(head["src"], headers={"range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")
    assert part.headers["content-range"] == f"bytes 1-3/{len(found.content)}"
    last = client.get(head["src"], headers={"range": "bytes=-4"})
    assert last.content == found.content[-4:]
    assert client.get(head["src"], headers={"range": "bytes=9999-"}).status_code == 416
    assert client.get(head["src"].replace("eggs", "nope")[:-8] + "0000.png").status_code == 404


FILM = b"\x1aE\xdf\xa3" + bytes(range(256)) * 4000  # a megabyte that looks like WebM


@pytest.fixture
def film(store):
    """The same bytes in SQLite and PostgreSQL."""
    with store.write() as connection:
        connection.execute(
            experiments.experiment.insert().values(
                id=1, name="x", settings={}, n_items=3, created=1.0
            )
        )
        connection.execute(
            media.insert().values(
                experiment_id=1, key="k", name="film", type="video/webm", data=FILM
            )
        )
    return store


def test_pieces_of_a_film_are_those_of_the_file(film: Store):
    with film.read() as connection:
        assert files.media_size(connection, 1, "k") == (len(FILM), "video/webm")
        for begin, count in ((0, 10), (777, 300_000), (len(FILM) - 5, 5), (len(FILM) - 1, 1)):
            piece = files.media_piece(connection, 1, "k", begin, count)
            assert piece == FILM[begin : begin + count]
        assert files.media_piece(connection, 1, "none", 0, 5) == b""


def test_a_byte_of_a_film_costs_no_copy_of_it(site):
    """100 requests for one byte of a film of 60 MB once took the process to 3 GB."""
    with site.store.write() as connection:
        number = experiments.find(connection, "eggs").frame.id
        key = "0" * 64 + ".webm"
        connection.execute(
            media.insert().values(
                experiment_id=number, key=key, name="f", type="video/webm", data=FILM * 8
            )
        )
    client = site.visitor()
    address = f"/media/eggs/{key}"
    client.get(address, headers={"range": "bytes=0-0"})
    tracemalloc.start()
    for k in range(20):
        part = client.get(address, headers={"range": f"bytes={k}-{k}"})
        assert part.content == FILM[k : k + 1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(FILM) * 2
    whole = client.get(address)
    assert whole.content == FILM * 8
    assert whole.headers["content-length"] == str(8 * len(FILM))


def test_pictures_and_dashboard_of_a_deleted_experiment_are_gone(site, experimenter):
    site.add("name: gone\n", [(f"{k}.png", png(k)) for k in range(4)])
    client = site.visitor()
    session = client.post("/api/v1/experiments/gone/participants", json={}).json()
    picture = session["queries"][0]["head"]["src"]
    assert client.get(picture).status_code == 200
    path = "/api/v1/experiments/gone"
    assert experimenter.get(f"{path}/dashboard").status_code == 200
    assert experimenter.request("DELETE", path, json={"confirm": "gone"}).status_code == 204
    assert client.get(picture).status_code == 404
    assert experimenter.get(f"{path}/dashboard").status_code == 404
    assert client.get("/e/gone/").status_code == 404


def test_a_smaller_copy_is_one_of_those_that_are_offered(site, experimenter):
    photos = [saved(scene(1300, 700).effect_spread(k + 3), "JPEG") for k in range(3)]
    files = [("items", (f"{k}.jpg", photo)) for k, photo in enumerate(photos)]
    files += [
        ("items", ("README.txt", b"My photos\n")),
        ("settings", ("experiment.yaml", b"name: photos\n")),
    ]
    made = experimenter.post("/api/v1/experiments", files=files)
    assert made.status_code == 201, made.text
    (notice,) = made.json()["notices"]
    assert notice.startswith("not used: README.txt")
    client = site.visitor()
    session = client.post("/api/v1/experiments/photos/participants", json={}).json()
    head = session["queries"][0]["head"]
    assert head["widths"] == [480, 960]
    small = client.get(f"{head['src']}?width=480")
    assert small.headers["content-type"] == "image/jpeg"
    assert "sandbox" in small.headers["content-security-policy"]
    assert len(small.content) < len(client.get(head["src"]).content)
    assert client.get(f"{head['src']}?width=481").status_code == 404
    tag = {"if-none-match": small.headers["etag"]}
    assert client.get(f"{head['src']}?width=480", headers=tag).status_code == 304
    assert client.get(head["src"], headers=tag).status_code == 200
