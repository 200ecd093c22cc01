"""Backups of a server."""

import argparse
import json
import os
import stat
import zipfile

import pytest
from sqlalchemy import select

from accelerando.crowd.serve.backup import backup, restore, run_links, run_restore
from accelerando.crowd.store import Store, experiments, export, participants, session
from accelerando.crowd.store.schema import audit, participant
from accelerando.crowd.web import accounts
from tests.crowd.conftest import Lab


def test_a_backup_of_the_server_can_be_restored_elsewhere(answered, tmp_path):
    file = tmp_path / "backup.zip"
    assert backup(answered.store, file) == ["eggs"]
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    assert restore(other, file) == ["eggs"]
    with other.read() as there:
        copy = experiments.find(there, "eggs")
    assert list(export.rows(other.read, copy)) == list(
        export.rows(answered.store.read, answered.find())
    )
    other.close()


PSEUDONYMS = "name: eggs\nitems: 8\nparticipants: {pseudonyms: true}\n"


@pytest.fixture
def moved(store, tmp_path):
    """A server with an account, a gap in its numbers and a running session, and its backup."""
    lab = Lab(store, PSEUDONYMS)
    lab.do(accounts.set_password, "anna", "hash", 1.0)
    gone = lab.come(id="1").person
    lab.do(participants.remove, lab.find(), gone.id)
    proof = participants.proof(lab.secret, lab.find(), "104")
    standing = lab.come(id="104", proof=proof)
    lab.token_of_104, lab.proof = lab.token(standing), proof
    lab.answer_all(lab.token_of_104, most=3)
    lab.do(experiments.note, 1.0, "anna", "pause", "eggs")
    backup(store, tmp_path / "b.zip", tmp_path / "b.key")
    return lab


def test_sessions_people_accounts_and_audit_move_to_a_new_server(moved, tmp_path):
    assert stat.S_IMODE((tmp_path / "b.key").stat().st_mode) == 0o600
    assert moved.secret.hex().encode() not in (tmp_path / "b.zip").read_bytes()
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    assert restore(other, tmp_path / "b.zip", tmp_path / "b.key") == ["eggs"]
    with other.write() as connection:
        secret = other.secret(connection)
        experiments.set_state(connection, 1, "running")
        found = session.look(connection, "eggs", secret, moved.token_of_104, 2, 9e9)
        assert found.person.answered == 3, "the running session"
        shown = {"id": "104", "proof": moved.proof}
        again = session.begin(connection, "eggs", secret, shown, "", None, 2, 9e9)
        assert again.person.id == found.person.id, "the same person on another device"
        new = session.begin(connection, "eggs", secret, {}, "", None, 2, 9e9)
        assert new.person.id > found.person.id
        assert accounts.stored_hash(connection, "anna")[1] == "hash"
        assert "pause" in connection.execute(select(audit.c.action)).scalars().all()
    other.close()


def test_a_wrong_key_or_a_full_database_is_refused_and_nothing_is_stored(moved, tmp_path):
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    for text in ("", "x", "0" * 64):
        (tmp_path / "wrong.key").write_text(text)
        with pytest.raises(ValueError, match="not the key file"):
            restore(other, tmp_path / "b.zip", tmp_path / "wrong.key")
    with other.read() as connection:
        assert experiments.names(connection) == []
    other.close()
    with pytest.raises(ValueError, match="empty database"):
        restore(moved.store, tmp_path / "b.zip", tmp_path / "b.key")
    assert moved.n_answers() == 3


def changed(file, name, content):
    """The backup with another content of one entry; None leaves it out."""
    with zipfile.ZipFile(file) as old:
        entries = {entry: old.read(entry) for entry in old.namelist()}
    entries[name] = content
    with zipfile.ZipFile(file, "w") as new:
        for entry, data in entries.items():
            if data is not None:
                new.writestr(entry, data)


def test_nobody_adds_an_account_to_a_backup(moved, tmp_path):
    """With the key file, an account that somebody had written into the backup was restored."""
    file, key = tmp_path / "b.zip", tmp_path / "b.key"
    with zipfile.ZipFile(file) as bundle:
        server = json.loads(bundle.read("server.json"))
    mallory = {**server["experimenter"][0], "name": "mallory", "admin": True}
    tampered = {**server, "experimenter": [*server["experimenter"], mallory]}
    changed(file, "server.json", json.dumps(tampered))
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    with pytest.raises(ValueError, match="or it was changed"):
        restore(other, file, key)
    with other.read() as connection:
        assert experiments.names(connection) == []
    changed(file, "server.seal", None)  # as in backups of earlier versions
    with pytest.warns(UserWarning, match="accounts"):
        assert restore(other, file, key) == ["eggs"]
    with other.write() as connection:
        assert not accounts.has_account(connection)
        assert other.secret(connection) == moved.secret
    other.close()


def repacked(file, change):
    """The backup with other entries."""
    with zipfile.ZipFile(file) as old:
        entries = {entry: old.read(entry) for entry in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for entry, data in entries.items():
            new.writestr(entry, data)
        change(new)


def with_a_bomb(file):
    zeros = b"\0" * 20_000_000
    repacked(file, lambda new: new.writestr("bomb.zip", zeros, zipfile.ZIP_DEFLATED))


def with_unusual_packing(file):
    repacked(file, lambda new: new.writestr("x.zip", b"x" * 9, zipfile.ZIP_BZIP2))


def with_passwords(file):
    data = bytearray(file.read_bytes())
    for start, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        found = -1
        while (found := data.find(start, found + 1)) >= 0:
            data[found + place] |= 1
    file.write_bytes(data)


def without_a_seal(content):
    def change(file):
        changed(file, "server.seal", None)
        changed(file, "server.json", content)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_a_bomb, "unpacks to 20,000,000 bytes"),
        (with_unusual_packing, "packed unusually"),
        (with_passwords, "has a password"),
        (lambda file: changed(file, "x.zip", b"hello"), "cannot be read"),
        (lambda file: file.write_bytes(file.read_bytes()[:-200]), "not a zip file"),
        (without_a_seal(b"[]"), "not the key file"),
        (without_a_seal(b"{}"), "not the key file"),
        (without_a_seal(b"\xff"), "not the key file"),
        (without_a_seal(b"[" * 100_000), "not the key file"),
    ],
)
def test_a_hostile_backup_is_refused_with_a_sentence_and_nothing_is_stored(
    moved, tmp_path, change, says
):
    change(tmp_path / "b.zip")
    options = argparse.Namespace(
        database=f"sqlite:///{tmp_path}/other.sqlite", directory=None, file=tmp_path / "b.zip",
        key_file=tmp_path / "b.key",
    )  # fmt: skip
    with pytest.raises(ValueError, match=says):
        run_restore(options)
    other = Store(options.database)
    with other.read() as connection:
        assert experiments.names(connection) == []
    other.close()


def test_a_backup_and_its_key_are_on_disk_before_they_count(answered, tmp_path, monkeypatch):
    """A power cut right after the command must leave both, or the file that was there before."""
    synced, renamed = [], []
    fsync, replace = os.fsync, os.replace

    def move(*names):
        renamed.append(len(synced))
        replace(*names)

    def note(descriptor):
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(
        os, "replace", lambda *names: renamed.append(len(synced)) or replace(*names)
    )
    backup(answered.store, tmp_path / "b.zip", tmp_path / "b.key")
    part, folder, key, again = synced
    for content, size in ((part, (tmp_path / "b.zip").stat().st_size), (key, 65)):
        assert content[0].endswith(".part")
        assert content[1] == size, "all of it"
    assert renamed == [1, 3], "the name comes after the content"
    assert folder[0] == again[0] == str(tmp_path), "and then the name itself"


def test_the_command_prints_links_that_work(store, tmp_path, capsys):
    lab = Lab(store, PSEUDONYMS)
    (tmp_path / "ids.txt").write_text("104\n\nanna b\n")
    options = argparse.Namespace(
        database=store.url, directory=None, url="https://x.org/", ids=tmp_path / "ids.txt"
    )
    assert run_links(options) == 0
    printed = capsys.readouterr().out
    assert "https://x.org/e/eggs/?invitation=" in printed
    assert "id=%SURVEY_CODE%" in printed
    assert f"proof={participants.proof(lab.secret, lab.find(), 'anna b')}" in printed
    with store.read() as connection:
        assert connection.execute(select(participant.c.id)).first() is None
