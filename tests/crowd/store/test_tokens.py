"""Ids are never given twice, and what a participant gets follows from a secret."""

import pytest
from sqlalchemy import delete, select

from accelerando.crowd.store import experiments, participants
from accelerando.crowd.store.counters import COUNTED
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import participant

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_the_browser_of_a_deleted_participant_does_not_open_the_next_session(lab):
    lab = lab(SMALL)
    gone = lab.come()
    token = lab.token(gone)
    lab.do(participants.remove, lab.find(), gone.person.id)
    after = lab.come()
    assert after.person.id > gone.person.id
    with pytest.raises(ApiError, match="unknown"):
        lab.look(token)
    assert lab.come(shown=token).person.id not in (gone.person.id, after.person.id)


def test_a_token_is_not_valid_for_another_person_even_with_the_same_number(lab):
    """Should a database give a number again, the secret still differs."""
    lab = lab(SMALL)
    first = lab.come()
    token = lab.token(first)
    other = participants.new_secret()
    lab.do(lambda c: c.execute(participant.update().values(secret=other)))
    with pytest.raises(ApiError, match="unknown"):
        lab.look(token)


@pytest.mark.parametrize("table", COUNTED, ids=lambda table: table.name)
def test_no_table_gives_an_id_twice(store, table):
    values = {
        "experimenter": {"name": "a", "password_hash": "x", "created": 1.0},
        "experiment": {"name": "a", "settings": {}, "n_items": 3, "created": 1.0},
        "api_token": {
            **{"token_hash": "h", "experimenter_id": 1, "name": "t", "scope": "read"},
            **{"created": 1.0, "expires": 2.0},
        },
        "participant": {
            **{"experiment_id": 1, "name": "p", "created": 1.0, "last": 1.0},
            **{"parameters": {}, "personal": {}},
        },
    }
    with store.write() as connection:
        for other in COUNTED:
            if other is not table and other.name in ("experimenter", "experiment"):
                connection.execute(other.insert().values(**values[other.name]))
        found = []
        for _ in range(3):
            add = table.insert().values(**values[table.name]).returning(table.c.id)
            found.append(connection.execute(add).scalar_one())
            connection.execute(delete(table).where(table.c.id == found[-1]))
    assert found == [1, 2, 3]


def test_what_is_drawn_follows_from_the_secret(lab):
    """The same secret gives the same queries; two people get different ones."""
    lab = lab(SMALL)
    asked = [
        [(q.head, q.left, q.right) for q in lab.answer_all(lab.token(lab.come()))[0]]
        for _ in range(4)
    ]
    assert len({tuple(one) for one in asked}) == 4
    with lab.store.read() as connection:
        rows = connection.execute(select(participant.c.secret)).scalars().all()
    assert len(set(rows)) == 4
    assert all(len(secret) == 32 for secret in rows)


def test_a_participant_of_a_former_version_keeps_token_and_queries(lab):
    """Without a secret the token is signed as before; a running study goes on after an upgrade."""
    lab = lab(SMALL)
    person = lab.come().person
    lab.do(lambda c: c.execute(participant.update().values(secret="")))
    before = lab.do(participants.get, lab.find(), person.id)
    old = participants.token(lab.secret, lab.find(), before)
    assert lab.look(old).person.id == person.id


def test_a_deleted_experiment_does_not_lend_its_id(lab):
    one = lab(SMALL)
    token = one.token(one.come())
    number = one.find().frame.id
    one.do(experiments.remove, number)
    again = lab(SMALL)
    assert again.find().frame.id > number
    with pytest.raises(ApiError, match="unknown"):
        again.look(token)
