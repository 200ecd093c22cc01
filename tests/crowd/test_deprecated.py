"""Former public names keep working for one version, with a warning."""

import numpy as np
import pytest

from accelerando import crowd
from accelerando.crowd._deprecated import DEPRECATED


@pytest.mark.parametrize("name", DEPRECATED)
def test_a_former_name_warns_and_names_the_replacement(name):
    with pytest.warns(FutureWarning, match=rf"accelerando\.crowd\.{name} is deprecated.* Use "):
        found = getattr(crowd, name)
    assert found is DEPRECATED[name][0]
    assert name not in crowd.__all__


def test_belief_has_its_former_methods():
    rows = [[0, 1, 2], [1, 0, 2]]
    model = crowd.OrdinalEmbedding(random_state=0).fit(rows)
    with pytest.warns(FutureWarning):
        belief = crowd.Belief.from_embedding(model, rows)
    np.testing.assert_allclose(belief.posterior().sum(axis=1), 1.0)
    expected = crowd.search(model, heads=[0])
    np.testing.assert_array_equal(crowd.search(belief, heads=[0]).queries, expected.queries)


def test_desk_has_its_former_methods():
    with pytest.warns(FutureWarning):
        desk = crowd.Desk(5, {"random": crowd.Random()})
    assert desk.ask(desk.open(seed=1), "anna").sampler == "random"
