"""Answers about a line of items, and experiments in SQLite and in a real PostgreSQL."""

import time

import numpy as np
import psycopg
import pytest
from sqlalchemy import func, select

from accelerando.crowd.experiment import Files, make_experiment, read_yaml
from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store, experiments, participants, session
from accelerando.crowd.store.schema import answer
from tests.crowd.postgres import postgres


class Eggs:
    """A line of items and answers to random queries about it, some of them careless."""

    def __init__(self, n_items, n_answers, seed, careless=0.07):
        rng = np.random.default_rng(seed)
        self.truth = np.arange(n_items, dtype=float)
        rows = np.argsort(rng.random((n_answers, n_items)), axis=1)[:, :3]
        nearer = np.abs(rows[:, 0] - rows[:, 1]) <= np.abs(rows[:, 0] - rows[:, 2])
        answered = nearer ^ (rng.random(n_answers) < careless)
        self.triplets = np.where(answered[:, None], rows, rows[:, [0, 2, 1]])


@pytest.fixture
def eggs():
    return Eggs


@pytest.fixture(scope="session")
def postgres_url():
    # Nobody pulls the plug: a test waits less for the disk.
    with postgres("fsync=off", "full_page_writes=off") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crowd.sqlite"
    found = request.getfixturevalue("postgres_url")
    with psycopg.connect(found, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return found


@pytest.fixture
def store(url):
    made = Store(url)
    yield made
    made.close()


class Lab:
    """An experiment in a store, and people who answer."""

    def __init__(self, store, settings):
        self.store = store
        document = read_yaml(settings)
        with store.write() as connection:
            self.secret = store.secret(connection)
            experiments.add(connection, make_experiment(document, Files()), time.time())
        self.name = document.value["name"]
        self.clock = time.time()

    def do(self, function, *arguments):
        with self.store.write() as connection:
            return function(connection, *arguments)

    def find(self):
        return self.do(experiments.find, self.name)

    def find_in(self, connection):
        """The experiment as this transaction sees it."""
        return experiments.find(connection, self.name)

    def come(self, count=2, shown=None, browser="", **parameters):
        return self.do(
            session.begin,
            *(self.name, self.secret, parameters, "", shown, count, self.tick(), browser),
        )

    def token(self, standing):
        return participants.token(self.secret, standing.snapshot, standing.person)

    def look(self, token, count=2):
        return self.do(session.look, self.name, self.secret, token, count, self.tick())

    def answer(self, token, query, winner="left", count=2):
        chosen = getattr(query, winner) if isinstance(winner, str) else winner
        return self.do(
            session.answer,
            *(self.name, self.secret, token, int(query.id), chosen, 1.0, 0.1, count, self.tick()),
        )

    def answer_all(self, token, winner="left", most=1000):
        """Answer until the session is over; the queries that were asked."""
        asked = []
        standing = self.look(token)
        while standing.queries and len(asked) < most:
            asked.append(standing.queries[0])
            standing = self.answer(token, standing.queries[0], winner)
        return asked, standing

    def n_answers(self):
        """Number of answers in the database."""
        with self.store.read() as connection:
            return connection.execute(select(func.count()).select_from(answer)).scalar_one()

    def tick(self):
        self.clock += 1.0
        return self.clock


@pytest.fixture
def lab(store):
    def make(settings):
        return Lab(store, settings)

    return make


# An experiment with skips and repeats.
EGGS = "name: eggs\nitems: 9\nskip: true\nparticipants: {answers: 15}\nchecks: {repeat_every: 7}\n"


@pytest.fixture
def answered(lab):
    """Thirty answers of two participants, a skip of each, and an embedding."""
    lab = lab(EGGS)
    for name in ("anna", "=cmd()"):
        token = lab.token(lab.come(participant=name, STUDY_ID="s"))
        lab.answer(token, lab.look(token).queries[0], None)
        lab.answer_all(token)
    Worker(lab.store).turn()
    return lab
