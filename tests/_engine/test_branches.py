"""Short forks of a run: what they compare, and that nothing of them remains."""

from __future__ import annotations

import math

import pytest
import torch

from accelerando._decisions import Measure
from accelerando._engine.branches import branch_gap
from accelerando.batch_size import CriticalBatchSize
from accelerando.compress import QSGD
from accelerando.exceptions import UnsupportedError
from accelerando.sync import PeriodicAveraging
from tests._engine.comm.ranks import flat, model_of, on_ranks
from tests._engine.comm.test_ddp import ddp_fit
from tests._engine.fits import plain_fit, plain_model
from tests.nets import MLP, classifier


def grown(digits, **settings):
    policy = CriticalBatchSize(**{"initial": 16, "every": 7, "fraction": 0.2, **settings})
    return classifier(
        batch_size=policy, max_epochs=2, module__dropout=0.3, train_split=None,
        optimizer=torch.optim.Adam, lr=0.003,
    ).fit(*digits)  # fmt: skip


def test_nothing_of_a_fork_remains(digits):
    """A run that measures and never grows is the run that never measured, dropout included."""
    watched = grown(digits, largest=16)
    plain = classifier(
        batch_size=16, max_epochs=2, module__dropout=0.3, train_split=None,
        optimizer=torch.optim.Adam, lr=0.003,
    ).fit(*digits)  # fmt: skip
    assert watched.updates_frame()["loss"].equals(plain.updates_frame()["loss"])
    for one, other in zip(watched.module_.parameters(), plain.module_.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_batch_grows_in_training_until_a_fork_loses(digits):
    frame = grown(digits, tolerance=0.05).updates_frame()
    sizes = frame["batch_size"]
    assert sizes.max() > 16
    assert sizes.max() < len(digits[0])
    rates = frame.groupby("batch_size")["lr"].max()
    assert rates[32] == pytest.approx(0.003 * math.sqrt(2))


def test_a_saved_run_continues_with_the_same_batches(digits, tmp_path):
    whole = grown(digits, tolerance=0.05)
    half = grown(digits, tolerance=0.05).set_params(max_epochs=1)
    half.fit(*digits)
    half.save_state(tmp_path / "state.pt")
    resumed = classifier(
        batch_size=half.batch_size, max_epochs=1, module__dropout=0.3, train_split=None,
        optimizer=torch.optim.Adam, lr=0.003,
    )  # fmt: skip
    resumed.initialize()
    resumed.load_state(tmp_path / "state.pt")
    resumed.partial_fit(*digits)
    sizes = whole.updates_frame()["batch_size"].tolist()
    assert resumed.updates_frame()["batch_size"].tolist() == sizes


def gap(growth=2.0, power=1.0, lr=0.1, batch=4, **fit_settings):
    torch.manual_seed(0)
    fit = plain_fit(plain_model(lr=lr), **fit_settings)
    fit.state.batch_size = batch
    return branch_gap(fit, Measure("branch_gap", 1.0, growth, power)), fit


def test_a_fork_with_the_same_batch_and_rate_loses_nothing():
    assert gap(growth=1.0)[0] == 0.0


def test_a_larger_batch_with_the_same_rate_learns_less_from_the_same_rows():
    assert gap(growth=3.0, power=0.0, lr=0.01)[0] > 0.0


def test_a_batch_that_does_not_exist_or_diverges_counts_as_lost():
    assert gap(batch=20)[0] == math.inf  # of 24 rows
    assert gap(power=1.0, lr=1e20)[0] == math.inf


@pytest.mark.parametrize(
    "settings",
    [{"compression": QSGD()}, {"sync": PeriodicAveraging(4), "virtual_ranks": 2}],
    ids=["compression", "averaging"],
)
def test_what_has_a_memory_outside_the_model_is_refused(digits, settings):
    net = classifier(MLP, batch_size=CriticalBatchSize(initial=16, every=2), **settings)
    with pytest.raises(UnsupportedError, match="CriticalBatchSize trains short forks"):
        net.fit(*digits)


def test_ranks_measure_what_one_process_does():
    def work(group):
        fit = ddp_fit(group, model_of(), rows=4)
        fit.state.batch_size = 4
        before = flat(fit.model.module)
        found = branch_gap(fit, Measure("branch_gap", 1.0, 2.0, 0.5))
        assert torch.equal(flat(fit.model.module), before)
        fit.comm.close()
        return found

    (alone,) = on_ranks(1, work)
    for found in on_ranks(2, work):
        assert found == pytest.approx(alone, abs=1e-6)
