"""The command that checks completion codes."""

from accelerando import cli
from accelerando.crowd.experiment import load_experiment
from accelerando.crowd.serve.commands import prepare
from accelerando.crowd.store import Store, participants
from accelerando.crowd.store.codes import completion_code
from accelerando.crowd.store.experiments import find
from accelerando.crowd.store.schema import participant
from tests.crowd.serve.test_commands import folder


def test_codes_are_checked_from_a_file(tmp_path, capsys):
    place = folder(tmp_path)
    Store(f"sqlite:///{place / 'crowd.sqlite'}").close()
    (tmp_path / "codes.txt").write_text("ABCD-EFGH-JKLM\n")
    check = ["crowd", "codes", str(place), "--check", str(tmp_path / "codes.txt")]
    assert cli.main(check) == 2
    assert "The server has no experiments" in capsys.readouterr().err
    store = Store(f"sqlite:///{place / 'crowd.sqlite'}")
    prepare(store, [load_experiment(place, None)])
    with store.write() as connection:
        secret, snapshot = store.secret(connection), find(connection, "eggs")
        person = participants.join(connection, snapshot, secret, {"id": "7"}, "", None, 1.0)
        connection.execute(participant.update().values(outcome="done"))
        code = completion_code(secret, snapshot, person)
    assert cli.main(check) == 1
    assert "unknown\tABCD-EFGH-JKLM" in capsys.readouterr().out
    (tmp_path / "codes.txt").write_text(f"{code}\n")
    assert cli.main([*check, "--use"]) == 0
    assert f"valid\t{code}\t7, done, 0 answers" in capsys.readouterr().out
    assert cli.main(check) == 1
    assert f"used\t{code}" in capsys.readouterr().out
    store.close()


def test_names_and_lines_of_participants_do_nothing_to_the_terminal(tmp_path, capsys):
    """A name with a line break looked like another line, ``valid`` in front."""
    place = folder(tmp_path)
    store = Store(f"sqlite:///{place / 'crowd.sqlite'}")
    prepare(store, [load_experiment(place, None)])
    with store.write() as connection:
        secret, snapshot = store.secret(connection), find(connection, "eggs")
        name = "7\nvalid\tABCD-EFGH-JKLM\x1b[1A\x1b[2K"
        person = participants.join(connection, snapshot, secret, {"id": name}, "", None, 1.0)
        code = completion_code(secret, snapshot, person)
    (tmp_path / "codes.txt").write_text(f"{code}\nhello \x1b]0;title\x07\tvalid\n")
    check = ["crowd", "codes", str(place), "--check", str(tmp_path / "codes.txt")]
    assert cli.main(check) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines[:2]] == ["unfinished", "unknown"]
    assert len(lines) == 3
    assert all(line.replace("\t", "").isprintable() for line in lines)
    assert lines[1].count("\t") == 1
    store.close()
