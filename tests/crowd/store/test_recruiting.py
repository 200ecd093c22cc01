"""Links for participants open exactly the sessions that they are made for."""

from urllib.parse import parse_qs, urlsplit

import pytest

from accelerando.crowd.store.participants import clean, invitation, proof
from accelerando.crowd.store.recruiting import links

PAGE = "https://lab.example/e/eggs"


def query(link):
    assert link.startswith(f"{PAGE}?")
    return {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}


@pytest.fixture
def eggs(lab):
    lab = lab("name: eggs\nitems: 8\n")
    return lab, lab.find()


def test_services_fill_in_their_own_values_and_the_invitation_cannot_be_guessed(eggs):
    lab, snapshot = eggs
    found = links(lab.secret, snapshot, PAGE, [])
    key = invitation(lab.secret, snapshot)
    assert query(found["open"]) == {"invitation": key}
    assert query(found["prolific"]) == {
        "invitation": key,
        "PROLIFIC_PID": "{{%PROLIFIC_PID%}}",
        "STUDY_ID": "{{%STUDY_ID%}}",
        "SESSION_ID": "{{%SESSION_ID%}}",
    }
    assert "id=%SURVEY_CODE%" in found["sona"]  # as SONA writes it, not quoted
    assert query(found["mturk"])["workerId"] == "${workerId}"
    assert found["personal"] == {}
    assert invitation(b"another server", snapshot) != key


@pytest.mark.parametrize("one", ["104", "Anna Bolena", "a&proof=b", "ä/ö?#", "x%20y", " padded "])
def test_a_personal_link_proves_the_id_it_names_and_no_other(eggs, one):
    lab, snapshot = eggs
    given = query(links(lab.secret, snapshot, PAGE, [one])["personal"][one])
    assert set(given) == {"participant", "proof"}
    assert given["participant"] == one, "what a browser sends is the id, whatever is in it"
    assert given["proof"] == proof(lab.secret, snapshot, clean(one))
    assert given["proof"] != proof(lab.secret, snapshot, clean(f"{one}1"))


def test_the_name_of_the_id_follows_the_experiment(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {id_parameters: [code, id]}\n")
    found = links(lab.secret, lab.find(), PAGE, ["7"])
    assert query(found["personal"]["7"])["code"] == "7"
