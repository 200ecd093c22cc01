"""Running counts of answers."""

import random

import pytest

from accelerando.crowd._forecast import Point
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import export, participants, published, session, statistics, tally
from accelerando.crowd.store.schema import answer, model
from accelerando.crowd.store.tally import Curve, Tallies, Timeline
from tests.crowd.conftest import EGGS

CHECKS = "checks: {every: 3, queries: [{head: 0, left: 1, right: 7, winner: 1}]}"
BUSY = f"name: eggs\nitems: 9\nskip: true\nparticipants: {{answers: 20}}\n{CHECKS}\n"


def look(lab, tallies, clock=None):
    clock = lab.clock if clock is None else clock
    with lab.store.read() as connection:
        return statistics.dashboard(connection, "eggs", "", clock, tallies)


def answer_some(lab, name, most=7):
    token = lab.token(lab.come(participant=name))
    for number in range(most):
        queries = lab.look(token).queries
        if not queries:
            break
        lab.answer(token, queries[0], ["left", "right", None, "left"][number % 4])
    return token


@pytest.mark.parametrize("look_back", [0, 4, 1000])
def test_running_counts_are_those_of_a_fresh_count(lab, monkeypatch, look_back):
    """Through answers, skips, checks, blocks, withdrawals, reinstatement and deletion."""
    monkeypatch.setattr(tally, "LOOK_BACK", look_back)
    lab = lab(BUSY)
    kept = Tallies()
    tokens = []
    for turn in range(6):
        tokens.append(answer_some(lab, f"person {turn}"))
        lab.clock += 45
        if turn == 2:
            Worker(lab.store).turn()
            lab.do(participants.set_blocked, lab.find(), 1, True)
        if turn == 3:
            lab.do(session.withdraw, "eggs", lab.secret, tokens[1], lab.clock)
        if turn == 4:
            person = lab.do(participants.get, lab.find(), 2)
            lab.do(participants.reinstate, lab.find(), person)
            lab.do(participants.remove, lab.find(), 3)
        found, fresh = look(lab, kept), look(lab, Tallies())
        assert found == fresh
        assert found["rate_per_minute"] < sum(found["activity"]["counts"]) or turn == 0
    assert found["quality"]["checks"] > 0
    assert found["quality"]["blocked"] == 1
    with lab.store.read() as connection:
        used = published.new_answers(connection, lab.find_in(connection).frame.id, 0)
        exported = list(export.rows(lab.store.read, lab.find_in(connection)))
    assert found["summary"]["answers"] == len(used), "the dashboard counts as the worker does"
    assert [row["query"] for row in exported if row["left_out"] is None] == [
        row.query_id for row in used
    ], "and so does the export"


def test_a_look_reads_new_answers_only(lab, monkeypatch):
    monkeypatch.setattr(tally, "LOOK_BACK", 5)
    read = []
    add = tally.Tally.add
    monkeypatch.setattr(
        tally.Tally,
        "add",
        lambda self, rows, clock: (read.append(len(rows)), add(self, rows, clock)),
    )
    lab = lab(EGGS)
    kept = Tallies()
    for name in "abcdef":
        lab.answer_all(lab.token(lab.come(participant=name)))
    lab.clock += 100
    look(lab, kept)
    assert sum(read) == 102
    read.clear()
    look(lab, kept)
    assert sum(read) == 5, "those that another process may still be writing around"
    lab.answer_all(lab.token(lab.come(participant="g")))
    read.clear()
    look(lab, kept)
    assert sum(read) == 5 + 17


def test_an_answer_that_becomes_visible_late_is_counted(lab):
    """PostgreSQL: the transaction with the smaller number may be committed second."""
    lab = lab(EGGS)
    token = lab.token(lab.come(participant="anna"))
    lab.answer_all(token, most=6)
    lab.clock += 100
    with lab.store.write() as connection:
        row = connection.execute(answer.select().order_by(answer.c.seq)).first()
        connection.execute(answer.delete().where(answer.c.seq == row.seq))
    kept = Tallies()
    assert sum(look(lab, kept)["activity"]["counts"]) == 5
    with lab.store.write() as connection:
        connection.execute(answer.insert().values(**row._mapping))
    assert sum(look(lab, kept)["activity"]["counts"]) == 6


def test_a_clock_that_was_ahead_leaves_no_rate(lab):
    lab = lab(EGGS)
    lab.answer_all(lab.token(lab.come(participant="anna")))
    kept = Tallies()
    assert look(lab, kept)["rate_per_minute"] == 17
    assert look(lab, kept, lab.clock - 3600)["rate_per_minute"] == 0
    assert look(lab, kept, lab.clock + 3600)["rate_per_minute"] == 0


def test_experiments_of_the_same_name_are_not_mixed_up(lab, store):
    made = lab(EGGS)
    kept = Tallies()
    made.answer_all(made.token(made.come(participant="anna")))
    assert look(made, kept)["quality"]["participants"] == 1
    made.do(statistics.stored.remove, made.find().frame.id)
    again = lab(EGGS)
    assert sum(look(again, kept)["active_share"].values()) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_timeline_merges_its_bins(seed):
    rng = random.Random(seed)
    times = [1e9 + rng.expovariate(1 / 10 ** rng.uniform(0, 7)) for _ in range(400)]
    whole, parts = Timeline(), Timeline()
    whole.add(times)
    for start in range(0, 400, 37):
        part = Timeline()
        part.add(times[start : start + 37])
        parts.merge(part)
    assert parts.size in (whole.size, *(s for s in tally._BIN_SECONDS if s > whole.size))
    whole._widen(parts.size)
    assert parts.counts == whole.counts
    shown = whole.to_json(0.0)
    assert len(shown["counts"]) <= 61
    assert sum(shown["counts"]) == 400
    first, last = min(times), max(times)
    assert shown["start"] <= first < shown["start"] + shown["bin_seconds"]
    assert last < shown["start"] + shown["bin_seconds"] * len(shown["counts"])


def test_a_curve_reads_each_embedding_once(lab):
    lab = lab(EGGS)
    number = lab.find().frame.id
    rng = random.Random(0)

    def publish(versions):
        with lab.store.write() as connection:
            for version in versions:
                connection.execute(
                    model.insert().values(
                        experiment_id=number, version=version, n_answers=10 * version, at=1.0,
                        seconds=0.1, accuracy=rng.random(), tested=rng.randrange(1, 30),
                    )
                )  # fmt: skip

    running = Curve()
    for start in range(1, 200, 20):
        publish(range(start, start + 20))
        with lab.store.read() as connection:
            found = running.update(connection, lab.find_in(connection))
            assert found == Curve().update(connection, lab.find_in(connection))
    assert all(isinstance(point, Point) and point.tested >= 40 for point in found)
