"""Counters of ids."""

from accelerando.crowd.store import counters, participants

SMALL = "name: eggs\nitems: 8\n"


def test_ids_go_on_after_those_of_the_former_server(lab):
    lab = lab(SMALL)
    assert lab.do(counters.last_ids)["experiment"] == 1
    lab.do(counters.advance, {"participant": 40})
    assert lab.come().person.id == 41
    lab.do(counters.advance, {"participant": 7})
    assert lab.come().person.id == 42, "they never go back"


def test_a_deleted_row_does_not_lend_its_id_after_a_restore(lab):
    lab = lab(SMALL)
    first = lab.come().person.id
    lab.do(participants.remove, lab.find(), first)
    lab.do(counters.advance)
    assert lab.come().person.id == first + 1
