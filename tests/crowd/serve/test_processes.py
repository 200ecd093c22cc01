"""The command itself: real processes, real signals, a real network."""

import os
import signal
import ssl
import subprocess
import threading
import time

import pytest

from accelerando.crowd.client import Experimenter, Participant, ServiceError
from tests.crowd.serving import PASSWORD, serving

EGGS = "name: eggs\nitems: 12\nparticipants: {answers: null}\nembedding: {warmup: 20}\n"


def folder(tmp_path, text=EGGS, name="e"):
    place = tmp_path / name
    place.mkdir()
    (place / "experiment.yaml").write_text(text)
    return place


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_killed_processes_come_back_and_no_acknowledged_answer_is_lost(tmp_path):
    # So many items that one participant does not run out of queries on a fast machine.
    with serving(folder(tmp_path, EGGS.replace("items: 12", "items: 60"))) as server:
        acknowledged, stop = [], threading.Event()

        def answer():
            person = Participant(server.url, "eggs", {"participant": "anna"})
            while not stop.is_set():
                query = person.next()
                person.answer(query, query.left, response_time=0.5)
                acknowledged.append(query.id)
            person.close()

        thread = threading.Thread(target=answer)
        thread.start()
        for kind in ("web", "worker", "web"):
            before = len(acknowledged)
            victim = until(lambda kind=kind: server.children()[kind])[0]
            until(lambda before=before: len(acknowledged) > before + 20)
            os.kill(victim, signal.SIGKILL)
            until(lambda kind=kind, victim=victim: set(server.children()[kind]) - {victim})
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before + 20)
        stop.set()
        thread.join()
        me = Experimenter(server.url, PASSWORD)
        rows = me.download("eggs", "answers.csv").decode().splitlines()[1:]
        stored = [row.split(",")[0] for row in rows]
        assert sorted(stored) == sorted(acknowledged)
        assert len(set(stored)) == len(stored)
        until(lambda: me.dashboard("eggs")["worker"]["behind"] == 0)
        me.close()
        web = server.children()["web"][0]
    until(lambda: not os.path.exists(f"/proc/{web}"))


def test_children_end_with_the_command_even_if_it_is_killed(tmp_path):
    with serving(folder(tmp_path), "--no-worker") as server:
        children = server.children()
        assert children["worker"] == []
        person = Participant(server.url, "eggs")
        assert person.next().details["kind"] == "query", "random queries need no worker"
        person.close()
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        until(lambda: not os.path.exists(f"/proc/{children['web'][0]}"))


def test_everything_is_there_after_a_restart(tmp_path):
    place = folder(tmp_path)
    with serving(place) as server:
        person = Participant(server.url, "eggs", {"participant": "anna"})
        first = person.next()
        person.answer(first, first.left)
        waiting, token = person.next().id, person.session["token"]
        person.close()
    assert "Stopped. All answers are stored." in server.output()
    assert [file.name for file in place.glob("crowd.sqlite*")] == ["crowd.sqlite"]
    (place / "experiment.yaml").write_text(EGGS + "title: Other\n")
    with serving(place) as server:
        assert "stored with other settings" in server.output()
        again = Participant(server.url, "eggs", {"participant": "anna"}, token=token)
        assert again.session["progress"]["answered"] == 1
        assert again.next().id == waiting, "a served query stays answerable"
        again.close()
        me = Experimenter(server.url, PASSWORD)
        assert me.experiments()[0]["title"] == "Similarity judgements"
        with pytest.raises(ServiceError, match="Wrong name or password"):
            Experimenter(server.url, "guess")
        me.pause("eggs")
        late = Participant(server.url, "eggs")
        assert late.session["outcome"] == "paused"
        late.close()
        me.resume("eggs")
        me.delete("eggs", confirm="eggs")
        assert me.experiments() == []
        me.close()


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


def test_tls_and_several_processes(tmp_path, certificate):
    options = ["--certificate", certificate / "cert.pem", "--key", certificate / "key.pem"]
    with serving(folder(tmp_path), *map(str, options), "--processes", "2") as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        people = [Participant(server.url, "eggs", context=trust) for _ in range(4)]
        for person in people:
            query = person.next()
            assert person.answer(query, query.right)
            person.close()
        me = Experimenter(server.url, PASSWORD, context=trust)
        assert me.summary("eggs")["answers"] == 4
        assert len(server.children()["web"]) == 2
        me.close()
