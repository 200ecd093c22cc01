"""Both databases: every test that takes ``store`` runs on SQLite and on a real PostgreSQL."""

import time

import psycopg
import pytest

from accelerando.crowd.experiment import Files, make_experiment, read_yaml
from accelerando.crowd.store import Store, experiments, participants, session
from tests.crowd.postgres import postgres


@pytest.fixture(scope="session")
def postgres_url():
    with postgres() as url:
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

    def come(self, count=2, shown=None, **parameters):
        return self.do(
            session.begin, self.name, self.secret, parameters, "", shown, count, self.tick()
        )

    def token(self, standing):
        return participants.token(self.secret, standing.now, standing.person.id)

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

    def tick(self):
        self.clock += 1.0
        return self.clock


@pytest.fixture
def lab(store):
    def make(settings):
        return Lab(store, settings)

    return make
