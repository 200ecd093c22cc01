"""The command ``accelerando crowd serve``."""

import subprocess
import sys

import pytest

from accelerando import cli
from accelerando.crowd.client import Experimenter, ServiceError
from accelerando.crowd.serve.commands import listen
from tests.crowd.serving import serving

EGGS = "name: eggs\nitems: 12\nparticipants: {answers: null}\nembedding: {warmup: 20}\n"


def folder(tmp_path, text=EGGS, name="e"):
    place = tmp_path / name
    place.mkdir()
    (place / "experiment.yaml").write_text(text)
    return place


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", place / "key.pem", "-out", place / "cert.pem", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return place


def test_the_first_start_prints_links_and_a_password_once(tmp_path, capsys):
    place = folder(tmp_path)
    other = folder(tmp_path, EGGS.replace("eggs", "shoes"), "other")
    with serving(place, str(other), password="") as server:
        text = server.output()
        assert "/e/eggs/" in text
        assert "/e/shoes/" in text
        password = text.partition("password: ")[2].split()[0]
        me = Experimenter(server.url, password)
        with pytest.raises(ServiceError, match="change your password first"):
            me.experiments()
        mine = "a password of my own"
        me._json("PUT", "/account/password", {"present": password, "new": mine})
        me._http.close()  # the change has ended the session
        me = Experimenter(server.url, mine)
        assert [e["name"] for e in me.experiments()] == ["eggs", "shoes"]
        me.close()
    file = str(tmp_path / "b.zip")
    assert cli.main(["crowd", "backup", str(place), "-o", file]) == 0
    assert cli.main(["crowd", "restore", file, str(tmp_path)]) == 0
    assert "restored: eggs" in capsys.readouterr().out
    assert cli.main(["crowd", "restore", file, str(tmp_path)]) == 2, "it is there already"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "nowhere"], "no file nowhere"),
        (["serve", "e", "--certificate", "x.pem"], "must be passed together"),
        (["serve", "e", "--processes", "0"], "an integer of at least 1. Got 0"),
        (["serve", "e", "--database", "mysql://u:secret@h/d"], "sqlite:///FILE"),
        (["backup", "nowhere"], "no database"),
        (["new", "e"], "already"),
    ],
)
def test_what_a_user_can_put_right_is_said(tmp_path, monkeypatch, capsys, arguments, says):
    folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["crowd", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "secret" not in said


def test_a_missing_extra_is_named_with_the_remedy(monkeypatch, capsys, tmp_path):
    for name in [name for name in sys.modules if name.startswith("accelerando.crowd.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerando.crowd.serve.commands", None)
    assert cli.main(["crowd", "serve", str(folder(tmp_path))]) == 2
    assert "pip install 'accelerando[crowd]'" in capsys.readouterr().err


def test_a_port_in_use_is_said():
    with listen("127.0.0.1", 0) as first, pytest.raises(ValueError, match="Choose another --port"):
        listen("127.0.0.1", first.getsockname()[1])


def test_problems_of_the_file_are_printed_all_at_once(tmp_path, capsys):
    place = folder(tmp_path, "name: Eggs!\nitems: [a, b]\nfoo: 1\n")
    assert cli.main(["crowd", "serve", str(place)]) == 2
    said = capsys.readouterr().err
    for words in ("experiment.yaml:1: name", "experiment.yaml:2: items", "experiment.yaml:3: foo"):
        assert words in said


def test_a_short_password_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCELERANDO_PASSWORD", "a")
    assert cli.main(["crowd", "serve", str(folder(tmp_path)), "--port", "0"]) != 0
    assert "at least 8 characters" in capsys.readouterr().err


def test_a_damaged_database_is_not_served(tmp_path, capsys):
    place = folder(tmp_path)
    (place / "crowd.sqlite").write_bytes(b"SQLite format 3\x00" + b"\xff" * 9000)
    assert cli.main(["crowd", "serve", str(place), "--port", "0"]) != 0
    said = capsys.readouterr().err
    assert "accelerando crowd restore" in said
    assert "Traceback" not in said
