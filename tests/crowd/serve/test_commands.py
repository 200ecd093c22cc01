"""The command ``accelerando crowd serve``."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from accelerando import cli
from accelerando.crowd.client import Experimenter, ServiceError
from accelerando.crowd.experiment import decoding, load_experiment, showing
from accelerando.crowd.serve import commands
from accelerando.crowd.serve.commands import database_url, listen, prepare, stored_pictures
from accelerando.crowd.store import Store, experiments
from accelerando.crowd.web import accounts
from tests.crowd.experiment.pictures import exif, saved, scene
from tests.crowd.serving import PASSWORD, serving

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
        (["serve", "e", "--proxy", "*"], "addresses or networks of proxies"),
        (["serve", "e", "--proxy", "127.0.0.1,localhost"], "Got 'localhost' instead"),
        (["serve", "e", "--proxy", "::/0"], "Got '::/0' instead"),
        (["serve", "e", "--proxy", "127.0.0.1,0.0.0.0/0"], "Got '0.0.0.0/0' instead"),
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


def test_a_database_that_everybody_can_read_is_named_with_the_remedy(tmp_path):
    file = tmp_path / "crowd.sqlite"
    url = f"sqlite:///{file}"
    assert commands.readable_by_others(url) == []
    Store(url).close()
    assert commands.readable_by_others(url) == []
    file.chmod(0o644)
    (said,) = commands.readable_by_others(url)
    assert said.endswith(f"chmod o-rwx {file}*")
    assert commands.readable_by_others("postgresql://x/y") == []


def test_a_missing_extra_is_named_with_the_remedy(monkeypatch, capsys, tmp_path):
    for name in [name for name in sys.modules if name.startswith("accelerando.crowd.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert cli.main(["crowd", "serve", str(folder(tmp_path))]) == 2
    assert "pip install 'accelerando[crowd]'" in capsys.readouterr().err


def test_a_port_in_use_is_said():
    with listen("127.0.0.1", 0) as first, pytest.raises(ValueError, match="Choose another --port"):
        listen("127.0.0.1", first.getsockname()[1])


def test_the_first_password_is_not_lost_when_the_port_was_taken(tmp_path, capsys, monkeypatch):
    """It is stored as a hash and shown once: a start that fails must not have made it."""
    monkeypatch.delenv("ACCELERANDO_PASSWORD", raising=False)
    place = folder(tmp_path)
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["crowd", "serve", str(place), "--port", port]) == 2
        assert "Choose another --port" in capsys.readouterr().err
    store = Store(f"sqlite:///{place / 'crowd.sqlite'}")
    with store.read() as connection:
        assert not accounts.has_account(connection)
    store.close()

    def supervise(serving, listener, ready):
        ready()

    monkeypatch.setattr(commands, "supervise", supervise)
    assert cli.main(["crowd", "serve", str(place), "--port", "0"]) == 0
    assert "(shown this once)" in capsys.readouterr().out
    with listen("127.0.0.1", 0) as taken:
        again = ["--port", str(taken.getsockname()[1]), "--reset-password"]
        assert cli.main(["crowd", "serve", str(place), *again]) == 2
    store = Store(f"sqlite:///{place / 'crowd.sqlite'}")
    with store.read() as connection:
        before = accounts.stored_hash(connection, "experimenter")
    assert cli.main(["crowd", "serve", str(place), "--port", "0"]) == 0
    with store.read() as connection:
        assert accounts.stored_hash(connection, "experimenter") == before
    store.close()


def test_a_code_that_can_be_guessed_is_told(tmp_path, capsys):
    place = folder(tmp_path, EGGS + 'completion: {done: {code: "FACES-{participant}"}}\n')
    store = Store(f"sqlite:///{place / 'crowd.sqlite'}")
    prepare(store, [load_experiment(place, None)])
    said = capsys.readouterr().err
    assert "completion.done.code" in said
    assert "{code}" in said
    prepare(store, [load_experiment(folder(tmp_path, EGGS.replace("eggs", "b"), "b"), None)])
    assert capsys.readouterr().err == ""
    store.close()


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


def _make(place, what):
    """Bring the folder of an experiment into trouble; return further arguments of the command."""
    file = place / "crowd.sqlite"
    if what == "noise":
        file.write_bytes(b"\xff" * 20_000)
        return []
    if what == "half a file":
        Store(f"sqlite:///{file}").close()
        file.write_bytes(file.read_bytes()[:9000])
        return []
    if what == "a folder":
        file.mkdir()
        return []
    if what in ("foreign tables", "another schema"):
        Store(f"sqlite:///{file}").close()
        change = "UPDATE meta SET value = '99' WHERE key = 'schema'"
        if what == "foreign tables":
            file.unlink()
            change = "CREATE TABLE participant (x INTEGER)"
        with sqlite3.connect(file) as connection:
            connection.execute(change)
        return []
    return {
        "no server": ["--database", "postgresql://u:secret@127.0.0.1:1/x"],
        "no such host": ["--database", "postgresql://u:secret@no.such.host.invalid/x"],
        "odd URL": ["--database", "postgresql://u:secret@:x:/y"],
        "no folder": ["--database", "sqlite:////nowhere/at/all.sqlite"],
        "odd port": ["--port", "99999"],
        "address of others": ["--host", "192.0.2.1"],
        "no certificate": ["--certificate", "no.pem", "--key", "no.pem"],
        "no PEM": [
            *("--certificate", str(place / "experiment.yaml")),
            *("--key", str(place / "experiment.yaml")),
        ],
    }[what]


@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("noise", "accelerando crowd restore"),
        ("half a file", "accelerando crowd restore"),
        ("a folder", "Check that its folder"),
        ("foreign tables", "Use a separate database"),
        ("another schema", "Install the version that wrote the database"),
        ("no server", "Check that its folder or its server exists"),
        ("no such host", "Check that its folder or its server exists"),
        ("odd URL", "It must be postgresql://USER:PASSWORD@HOST:PORT/NAME"),
        ("no folder", "Check that its folder"),
        ("odd port", "Choose another --port"),
        ("address of others", "Pass an address of this machine as --host"),
        ("no certificate", "--certificate no.pem cannot be read"),
        ("no PEM", "They must be PEM files that belong together"),
    ],
)
def test_every_problem_of_the_start_is_one_sentence_with_the_remedy(tmp_path, capsys, what, remedy):
    place = folder(tmp_path)
    more = _make(place, what)
    port = [] if "--port" in more else ["--port", "0"]
    assert cli.main(["crowd", "serve", str(place), *more, *port]) == 2
    said = capsys.readouterr().err.strip()
    assert remedy in said
    assert "\n" not in said
    assert "secret" not in said


# Root may write everywhere: everything is imported first, then the rights are given away.
_AS_NOBODY = """
import codecs, os, sqlite3, sys
import accelerando.crowd.serve.commands, accelerando.crowd.web.app, sqlalchemy.dialects.sqlite
from accelerando import cli
codecs.lookup("utf-8-sig"), codecs.lookup("idna")
if os.geteuid() == 0:
    os.setegid(65534), os.seteuid(65534)
sys.exit(cli.main(["crowd", "serve", *sys.argv[1:], "--port", "0"]))
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_read_only_folder_or_file_is_said(what):
    with tempfile.TemporaryDirectory() as made:  # one that others may enter, unlike tmp_path
        top = Path(made)
        top.chmod(0o755)
        place = folder(top)
        if what == "file":
            file = place / "crowd.sqlite"
            Store(f"sqlite:///{file}").close()
            file.chmod(0o444)
            place.chmod(0o777)
        else:
            place.chmod(0o555)
        ended = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        place.chmod(0o755)
    said = ended.stderr.strip()
    assert ended.returncode == 2, said
    assert "\n" not in said
    assert "this user" in said, "who has to get the right"


def test_a_process_that_cannot_open_the_database_refuses_and_says_why(tmp_path):
    """It once died with a traceback again and again, while requests waited for nobody."""
    place = folder(tmp_path)
    with serving(place) as server:
        Experimenter(server.url, PASSWORD).close()
        file = place / "crowd.sqlite"
        file.write_bytes(b"\xff" * file.stat().st_size)
        for pid in server.children()["web"]:
            os.kill(pid, signal.SIGKILL)
        found = None
        while found is None or found.get("database") != "damaged":
            try:
                urllib.request.urlopen(f"{server.url}/health", timeout=30).close()
            except urllib.error.HTTPError as error:
                found = json.load(error)
            except OSError:
                continue  # the listener answers when the next process has begun
        assert "accelerando crowd restore" in server.output()
        assert "Traceback" not in server.output()


def test_changed_items_are_told():
    from accelerando.crowd.experiment import Item
    from accelerando.crowd.serve.commands import changed_items

    a, b, c = (Item.of_text(text) for text in "abc")
    said = changed_items("eggs", [a, b], [Item("text", "a", alt="new"), c])
    assert "added: c; removed: b; changed: a" in said
    assert "delete the stored experiment" in said
    assert "another order" in changed_items("eggs", [a, b], [b, a])


def photos(tmp_path):
    """An experiment with three photos in a format that is converted."""
    place = folder(tmp_path, "name: photos\nitems: images\n")
    (place / "images").mkdir()
    for k in range(3):
        photo = saved(scene().rotate(90 * k), "HEIF", exif=exif())
        (place / "images" / f"{k}.heic").write_bytes(photo)
    return place


def start(place):
    """Read and store an experiment, as `crowd serve` does."""
    url = database_url(None, [place])
    with stored_pictures(url) as known:
        made = load_experiment(place, known=known)
    store = Store(url)
    prepare(store, [made])
    store.close()
    return made


def test_a_restart_decodes_only_new_pictures_and_tells_what_changed(tmp_path, capsys, monkeypatch):
    place = photos(tmp_path)
    assert len(start(place).media) == 3
    (place / "images" / "README.txt").write_text("My photos\n")
    capsys.readouterr()
    asked = []
    decode = decoding.decode_pictures

    def watched(pictures, pixels):
        asked.append(len(pictures))
        return decode(pictures, pixels)

    monkeypatch.setattr(showing, "decode_pictures", watched)
    assert start(place).media == {}
    said = capsys.readouterr().err
    assert "not used: README.txt" in said
    assert "are not those" not in said
    (place / "images" / "0.heic").write_bytes(saved(scene(), "HEIF", quality=30))
    start(place)
    assert asked == [0, 1]
    assert "changed: 0.heic" in capsys.readouterr().err


def test_pictures_that_a_former_version_stored_as_they_are_count_as_the_same(tmp_path, capsys):
    place = photos(tmp_path)
    for k in range(3):
        (place / "images" / f"{k}.heic").unlink()
        jpeg = saved(scene().rotate(k), "JPEG", exif=exif())
        (place / "images" / f"{k}.jpg").write_bytes(jpeg)
    made = load_experiment(place)
    old = [replace(item, media=f"{made.media[item.media].source}.jpg") for item in made.items]
    store = Store(database_url(None, [place]))
    with store.write() as connection:
        experiments.add(connection, replace(made, items=old, media={}), 1.0)
    store.close()
    start(place)
    assert "are not those" not in capsys.readouterr().err
    (place / "images" / "2.jpg").write_bytes(saved(scene(), "JPEG", quality=20))
    start(place)
    assert "changed: 2.jpg" in capsys.readouterr().err


def test_a_picture_that_cannot_be_shown_stops_the_start(tmp_path, capsys):
    place = photos(tmp_path)
    file = place / "images" / "1.heic"
    file.write_bytes(file.read_bytes()[:200])
    assert cli.main(["crowd", "serve", str(place), "--port", "0"]) == 2
    assert "1 file cannot be shown: 1.heic: it is truncated" in capsys.readouterr().err
    assert not (place / "crowd.sqlite").exists()
