"""Downloads, and restoring an archive."""

import csv
import io

from tests.crowd.web.conftest import API, answer, begin


def test_downloads_and_the_way_back(site, experimenter, visitor):
    session = begin(visitor, participant="anna")
    while not session["finished"]:
        session = answer(visitor, session["queries"][0]).json()
    found = experimenter.get(f"{API}/downloads/answers.csv")
    assert found.headers["content-disposition"] == 'attachment; filename="eggs-answers.csv"'
    assert len(list(csv.DictReader(io.StringIO(found.text)))) == 5
    for what in ("answers.parquet", "answers-salmon.csv", "skips.csv", "participants.csv"):
        assert experimenter.get(f"{API}/downloads/{what}").status_code == 200
    assert experimenter.get(f"{API}/downloads/embedding.csv").status_code == 404
    assert experimenter.get(f"{API}/downloads/passwords.csv").status_code == 422
    yaml = experimenter.get(f"{API}/downloads/experiment.yaml").content
    copy = experimenter.post(
        "/api/v1/experiments",
        files=[("settings", ("experiment.yaml", yaml))],
        data={"name": "copy"},
    )
    assert copy.status_code == 201, copy.text
    archive = experimenter.get(f"{API}/downloads/archive.zip").content
    back = experimenter.post(
        "/api/v1/restore", files={"archive": ("a.zip", archive)}, data={"name": "back"}
    )
    assert back.status_code == 201, back.text
    assert (back.json()["answers"], back.json()["state"]) == (5, "paused")
    bad = experimenter.post("/api/v1/restore", files={"archive": ("a.zip", b"PK nonsense")})
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "archive")
