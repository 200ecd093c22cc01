"""What the worker reads and publishes."""

from accelerando.crowd._sampler import Query, SamplerState
from accelerando.crowd.store import participants, published
from accelerando.crowd.store.published import Fitted

EGGS = "name: eggs\nitems: 9\nskip: true\nparticipants: {answers: null}\n"


def fitted(n_answers, tested=0):
    accuracy = 0.75 if tested else None
    return Fitted(n_answers, 0.1, 0.5, 0.05, [[float(n_answers)]], accuracy, tested)


def test_new_answers_are_those_after_a_number_without_skips_and_blocked_people(lab):
    lab = lab(EGGS)
    anna, ben = (lab.come(participant=name) for name in ("anna", "ben"))
    for standing in (anna, ben):
        token = lab.token(standing)
        lab.answer(token, lab.look(token).queries[0], None)
        lab.answer_all(token, most=2)
    number = lab.find().frame.id
    rows = lab.do(published.new_answers, number, 0)
    assert len(rows) == 4
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    assert len(lab.do(published.new_answers, number, rows[2].seq)) == 1
    lab.do(participants.set_blocked, lab.find(), ben.person.id, True)
    assert lab.do(published.new_answers, number, 0) == rows[:2]


def test_embedding_queue_and_states_are_published_together(lab):
    lab = lab(EGGS)
    states = {"arr": SamplerState(9, seed=3, turn=2, deck=(4, 1))}
    queue = {"arr": [Query(0, 1, 2, 0.5), Query(3, 4, 5)]}
    version = lab.do(published.publish, lab.find(), queue, states, fitted(20), 7.0)
    found = lab.find()
    assert found.queue_version == version == 1
    assert lab.do(published.left_in_queue, found) == queue
    assert lab.do(published.saved_states, found.frame) == states
    row = lab.do(published.newest, found.frame)
    assert (row.n_answers, row.at, row.positions) == (20, 7.0, [[20.0]])


def test_tested_embeddings_keep_their_accuracy_and_only_the_newest_its_positions(lab):
    lab = lab(EGGS)
    for count, tested in ((10, 30), (20, 0), (30, 0)):
        lab.do(published.publish, lab.find(), {}, {}, fitted(count, tested), 1.0)
    with lab.store.read() as connection:
        rows = connection.execute(published.model.select().order_by("version")).all()
    assert [(row.n_answers, row.tested, row.positions) for row in rows] == [
        (10, 30, None),
        (30, 0, [[30.0]]),
    ]


def test_the_queue_of_the_previous_version_is_kept_for_requests_that_read_it(lab):
    lab = lab(EGGS)
    queries = [Query(k, 7, 8, 0.5) for k in range(3)]
    snapshots = []
    for query in queries:
        lab.do(published.publish, lab.find(), {"arr": [query]}, {}, None, 1.0)
        snapshots.append(lab.find())
    left = [lab.do(published.left_in_queue, snapshot) for snapshot in snapshots]
    assert left == [{}, {"arr": [queries[1]]}, {"arr": [queries[2]]}]


def test_one_worker_holds_the_lease_until_its_beat_stops_or_it_is_released(lab):
    lab = lab(EGGS)

    def renew(owner, clock, dead=None):
        return lab.do(published.renew_lease, owner, clock, 0, None, None, dead)

    # The clock of the first is a day ahead: times do not matter, beats do.
    assert renew("a", 86500.0) is None
    seen = renew("b", 110.0)
    assert seen == ("a", 1)
    assert renew("a", 86502.0) is None
    assert renew("b", 112.0, dead=seen) == ("a", 2), "it lives: its beat has changed"
    assert renew("b", 130.0, dead=("a", 2)) is None
    assert renew("a", 86520.0) == ("b", 3)
    lab.do(published.release_lease, "b")
    assert renew("a", 129.0) is None
