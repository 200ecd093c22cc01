"""The session of a participant, request by request."""

from concurrent.futures import ThreadPoolExecutor

from accelerando.crowd.store import session

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_a_session_from_the_first_query_to_the_last(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(participant="anna"))
    asked, end = lab.answer_all(token)
    assert len(asked) == 5
    assert end.outcome == "done"
    assert end.person.answered == 5
    assert len({(q.head, q.low, q.high) for q in asked}) == 5, "nobody is asked the same twice"
    assert lab.n_answers() == 5


def test_tabs_at_once_get_the_same_queries_and_no_more_than_the_quota(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(count=0))
    with ThreadPoolExecutor(6) as pool:
        seen = list(pool.map(lambda _: [q.id for q in lab.look(token).queries], range(12)))
    assert len({tuple(map(int, ids)) for ids in seen}) == 1

    def all_of_it(_):
        return lab.answer_all(token)[0]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(all_of_it, range(6)))
    assert lab.n_answers() == 5, "the quota holds however many tabs there are"


def test_consent_comes_first(lab):
    lab = lab(SMALL + "consent: {text: Please agree}\n")
    standing = lab.come()
    token = lab.token(standing)
    assert standing.consent_required
    assert not standing.queries
    agreed = lab.do(session.consent, lab.name, lab.secret, token, True, 5.0)
    assert agreed.person.consented == 5.0
    assert agreed.queries
    other = lab.come(participant="b")
    refused = lab.do(session.consent, lab.name, lab.secret, lab.token(other), False, 5.0)
    assert refused.outcome == "no_consent"
    assert not lab.look(lab.token(other)).queries


def test_while_paused_open_queries_are_taken_and_no_new_ones_asked(lab):
    from accelerando.crowd.store import experiments

    lab = lab(SMALL)
    standing = lab.come()
    token = lab.token(standing)
    lab.do(experiments.set_state, lab.find().frame.id, "paused")
    after = lab.answer(token, standing.queries[0])
    assert after.taken.stored
    assert (after.outcome, list(after.queries)) == ("paused", [])
    lab.do(experiments.set_state, lab.find().frame.id, "running")
    assert lab.look(token).queries[0].id == standing.queries[1].id
