"""The numbers of the dashboard."""

import json
import time

from accelerando.crowd.store import statistics
from tests.crowd.conftest import EGGS


def test_the_dashboard_counts_what_is_there(answered):
    with answered.store.read() as connection:
        found = statistics.dashboard(connection, "eggs", "", time.time())
    assert found["summary"]["answers"] == 30
    assert found["summary"]["skips"] == 2
    assert sum(found["activity"]["counts"]) == 36, "with skips and repeats"
    assert sum(found["arrivals"]["counts"]) == 2
    assert sum(found["response_time"]["counts"]) == 36
    assert found["samplers"][0]["queued"] > 0
    assert sum(found["items"]["queries"]) == 3 * 34
    assert sum(found["active_share"].values()) == 34
    assert found["active_share"]["check"] == 4
    assert found["worker"]["model_version"] == found["embedding_version"]
    assert found["worker"]["behind"] == 0
    json.dumps(found)


def test_an_empty_experiment_has_a_dashboard_too(lab):
    lab(EGGS)
    with lab("name: other\nitems: 3\n").store.read() as connection:
        found = statistics.dashboard(connection, "eggs", "", time.time())
    assert found["coverage"]["never"] == 9
    assert found["accuracy"]["answers_to_go"] is None
