"""A run without a scheduler says what is held here and how to go on."""

from types import SimpleNamespace

import pytest

from accelerando._cluster.driver.failures import fit_without_scheduler
from accelerando._engine.position import Position


@pytest.mark.parametrize(
    ("folder", "remedy"),
    [
        (None, "continues from it. (checkpoint= would keep it on disk, too.)"),
        ("runs/1", "In any process, fit with checkpoint='runs/1' continues from its newest file."),
    ],
)
def test_the_newest_state_and_the_remedy_are_named(folder, remedy):
    state = SimpleNamespace(position=Position(epoch=2, update=7))
    job = SimpleNamespace(fit=SimpleNamespace(state=state), checkpoint=folder)
    error = fit_without_scheduler(job, "tcp://10.0.0.1:8786", "it was killed.")
    assert str(error).startswith(
        "The Dask scheduler at tcp://10.0.0.1:8786 is gone (it was killed). The estimator holds "
        "the state of update 7, after 2 whole epochs. "
    )
    assert str(error).endswith(remedy)
