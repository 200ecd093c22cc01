"""Completion codes: nobody can guess one, and each is paid once."""

import pytest

from accelerando.crowd.store import codes, participants, session
from accelerando.crowd.web.schemas import session_json

EGGS = """
name: eggs
items: 8
participants: {answers: 2}
completion: {done: {code: "FACES-{code}"}, full: {code: "{code}"}}
"""


def shown(lab, standing):
    return session_json(standing, lab_items(lab), lab.secret, "")["completion"]["code"]


def lab_items(lab):
    from accelerando.crowd.store.experiments import items_of

    return lab.do(items_of, lab.find().frame.id)


def check(lab, lines, use=False):
    found = lab.do(
        lambda c: codes.check_codes(
            c, lab.secret, lab.find_in(c), lines, lab.tick(), use=use, who="me"
        )
    )
    return [one["status"] for one in found], found


def test_each_code_is_paid_once(lab):
    lab = lab(EGGS)
    ends = [lab.answer_all(lab.token(lab.come(participant=name)))[1] for name in ("anna", "bert")]
    given = [shown(lab, end) for end in ends]
    assert len(set(given)) == 2
    assert all("anna" not in code and "bert" not in code for code in given)
    begun = lab.come(participant="carl")
    early = codes.completion_code(lab.secret, lab.find(), begun.person)
    wrong = given[0][:-1] + ("2" if given[0][-1] != "2" else "3")
    lines = [given[0], f"worker 7: {given[1].lower()} thanks", "", given[0], wrong, early, "x"]
    expected = ["valid", "valid", "twice", "unknown", "unfinished", "unknown"]
    found, rows = check(lab, lines)
    assert found == expected
    assert [row["participant"] for row in rows[:2]] == ["anna", "bert"]
    assert (rows[0]["outcome"], rows[0]["answered"]) == ("done", 2)
    assert check(lab, lines, use=True)[0] == expected, "looking does not use a code up"
    found, rows = check(lab, given)
    assert found == ["used", "used"]
    assert rows[0]["used"] is not None


def test_a_code_stays_valid_when_its_owner_withdraws_and_not_after_deletion(lab):
    lab = lab(EGGS)
    token = lab.token(lab.come())
    end = lab.answer_all(token)[1]
    code = shown(lab, end)
    lab.do(session.withdraw, lab.name, lab.secret, token, lab.clock)
    assert check(lab, [code])[0] == ["valid"], "the work was done"
    lab.do(participants.remove, lab.find(), end.person.id)
    assert check(lab, [code])[0] == ["unknown"]


def test_a_code_cannot_be_made_without_the_servers_key_nor_brought_along_in_the_link(lab):
    lab = lab(EGGS.replace("{answers: 2}", "{answers: 2, keep_parameters: [code]}"))
    end = lab.answer_all(lab.token(lab.come(code="MINE")))[1]
    assert "MINE" not in shown(lab, end)
    assert codes.completion_code(b"x" * 32, lab.find(), end.person) not in shown(lab, end)


@pytest.mark.parametrize("secret", ["", "0" * 32])
def test_codes_have_no_signs_that_people_confuse(lab, secret):
    lab = lab(EGGS)
    person = lab.come().person

    class Someone:
        id = person.id

    Someone.secret = secret
    code = codes.completion_code(lab.secret, lab.find(), Someone)
    assert codes._CODE.fullmatch(code)
    assert not set(code) & set("01IO")
