"""Runs whose ranks average parameters continue as if they had never stopped."""

from __future__ import annotations

import pickle

import pytest
import torch
from skorch.callbacks import LRScheduler

from accelerando.sync import PeriodicAveraging
from tests.contracts.test_sync import EVERY, STRATEGIES, At, ranks
from tests.nets import CNN, classifier, parameters_of


def stop(net):
    raise KeyboardInterrupt


def test_resuming_with_adam_and_channels_last(digits):
    data = (digits[0].reshape(-1, 1, 8, 8), digits[1])

    def make(*callbacks):
        settings = {"optimizer": torch.optim.Adam, "lr": 0.01, "batch_size": 20, "max_epochs": 2}
        several = {"virtual_ranks": 3, "sync": PeriodicAveraging(4, optimizer_state="average")}
        return classifier(CNN, callbacks=list(callbacks), **settings, **several)

    whole, stopped = make().fit(*data), make(At(5, stop)).fit(*data)
    assert torch.equal(parameters_of(stopped.partial_fit(*data)), parameters_of(whole))


@EVERY
@pytest.mark.parametrize("at", [5, 7])
def test_resuming_equals_never_having_stopped(name, at, digits, tmp_path):
    schedule = [LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)]
    strategy, data = STRATEGIES[name], (digits[0][:400], digits[1][:400])
    whole = ranks(strategy, callbacks=schedule).fit(*data)
    save = At(at, lambda net: net.save_state(tmp_path / "state"))
    ranks(strategy, callbacks=[save, *schedule]).fit(*data)

    later = ranks(strategy, callbacks=schedule).load_state(tmp_path / "state").partial_fit(*data)
    stopped = ranks(strategy, callbacks=[At(at, stop), *schedule])
    stopped.fit(*data)
    pickled = pickle.loads(pickle.dumps(stopped))
    for net in (later, stopped, pickled):
        if net is not later:
            net.partial_fit(*data)
        torch.testing.assert_close(parameters_of(net), parameters_of(whole), rtol=0, atol=0)
        columns = ["loss", "period", "spread", "averagings", "bytes"]
        assert net.updates_frame()[columns].equals(whole.updates_frame()[columns])


def test_a_state_that_is_loaded_and_saved_has_its_ranks(digits, tmp_path):
    whole = ranks(PeriodicAveraging(3), max_epochs=1).fit(*digits)
    save = At(4, lambda net: net.save_state(tmp_path / "state"))
    ranks(PeriodicAveraging(3), callbacks=[save], max_epochs=1).fit(*digits)
    ranks(PeriodicAveraging(3)).load_state(tmp_path / "state").save_state(tmp_path / "again")
    later = ranks(PeriodicAveraging(3)).load_state(tmp_path / "again").partial_fit(*digits)
    assert torch.equal(parameters_of(later), parameters_of(whole))


def test_other_ranks_start_from_the_average(digits, tmp_path):
    save = At(4, lambda net: net.save_state(tmp_path / "state"))
    ranks(PeriodicAveraging(3), callbacks=[save], max_epochs=2).fit(*digits)
    fewer = ranks(PeriodicAveraging(3), virtual_ranks=2, max_epochs=2)
    fewer.load_state(tmp_path / "state")
    average = parameters_of(fewer)
    begun = []
    fewer.set_params(callbacks=[At(5, lambda net: begun.append(len(net._state_.replicas.tensors)))])
    fewer.initialize_callbacks()
    fewer.partial_fit(*digits)
    assert begun == [2]
    assert not torch.equal(parameters_of(fewer), average)
    assert fewer.updates_frame()["ranks"].tolist()[:6] == [4, 4, 4, 4, 2, 2]
    with pytest.warns(UserWarning, match="All ranks start from the saved model"):
        ranks(PeriodicAveraging(5)).load_state(tmp_path / "state").partial_fit(*digits)
