"""Constraints of the schema."""

import pytest

from accelerando.crowd.store.schema import answer

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_the_database_itself_refuses_a_second_answer(lab):
    from sqlalchemy.exc import IntegrityError

    lab = lab(SMALL)
    standing = lab.come()
    lab.answer(lab.token(standing), standing.queries[0])
    row = {
        "experiment_id": lab.find().frame.id,
        "query_id": standing.queries[0].id,
        "winner": 1,
        "received": 1.0,
    }
    with pytest.raises(IntegrityError), lab.store.write() as connection:
        connection.execute(answer.insert().values(**row))
    with pytest.raises(IntegrityError), lab.store.write() as connection:
        connection.execute(answer.insert().values(**{**row, "query_id": 1}))
