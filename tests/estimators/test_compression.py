"""``compression=`` in one process: it steps with what it would have sent."""

import pytest
import torch
from torch import nn

from accelerando.compress import (
    QSGD,
    Adaptive,
    ErrorFeedback,
    PowerSGD,
    TernGrad,
    TopK,
)
from accelerando.compress._retired import RandomK, SignSGD
from accelerando.exceptions import UnsupportedError
from tests.nets import MLP, classifier, parameters_of


class Wide(MLP):
    def __init__(self, **kwargs):
        super().__init__(hidden=128, **kwargs)


def net_of(**params):
    settings = {"batch_size": 64, "max_epochs": 4, "lr": 0.5, "train_split": None}
    return classifier(Wide, **{**settings, **params})


def test_one_process_steps_with_what_it_would_have_sent(digits):
    whole = net_of().fit(*digits)
    fine = net_of(compression=QSGD(bits=8)).fit(*digits)
    coarse = net_of(compression=TernGrad()).fit(*digits)
    assert not torch.equal(parameters_of(fine), parameters_of(whole))
    near = (parameters_of(fine) - parameters_of(whole)).norm()
    assert near < (parameters_of(coarse) - parameters_of(whole)).norm()
    frame = fine.updates_frame()
    assert (frame["bytes"] == 0).all()
    assert (frame["encode_seconds"] > 0).all()
    # Everything kept is everything: the same as without.
    kept = net_of(compression=RandomK(1.0)).fit(*digits)
    torch.testing.assert_close(parameters_of(kept), parameters_of(whole))


def test_an_interrupted_run_draws_the_same(digits, tmp_path):
    whole = net_of(compression=QSGD(bits=2)).fit(*digits)
    half = net_of(compression=QSGD(bits=2), max_epochs=2).fit(*digits)
    half.save_state(tmp_path / "state")
    rest = net_of(compression=QSGD(bits=2), max_epochs=2)
    rest.initialize().load_state(tmp_path / "state")
    rest.partial_fit(*digits)
    assert torch.equal(parameters_of(rest), parameters_of(whole))


def test_settings_can_be_searched(digits):
    net = net_of(compression=QSGD, compression__bits=2)
    assert net._compressor() == QSGD(bits=2)
    net.set_params(compression__bits=4)
    assert net._compressor() == QSGD(bits=4)
    net.set_params(compression=TernGrad)
    assert net._compressor() == TernGrad()


class OwnStep:
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


def test_what_cannot_work_is_said_before(digits):
    with pytest.raises(UnsupportedError, match="client"):
        net_of(compression=PowerSGD()).fit(*digits)
    with pytest.raises(TypeError, match="'compression' parameter must be"):
        net_of(compression="qsgd").fit(*digits)
    net = net_of(compression=QSGD())
    own = type("Own", (OwnStep, type(net)), {})(
        Wide, criterion=nn.CrossEntropyLoss, compression=QSGD()
    )
    with pytest.raises(UnsupportedError, match="train_step"):
        own.fit(*digits)


def lbfgs(compression):
    return net_of(
        compression=compression, optimizer=torch.optim.LBFGS, lr=0.1, batch_size=-1,
        optimizer__max_iter=3, max_epochs=3,
    )  # fmt: skip


def test_an_optimizer_that_evaluates_several_gradients_may_compress_them(digits):
    whole, fine = lbfgs(None).fit(*digits), lbfgs(QSGD(bits=8)).fit(*digits)
    assert fine.updates_frame()["loss"].iloc[-1] < 0.9 * fine.updates_frame()["loss"].iloc[0]
    assert not torch.equal(parameters_of(fine), parameters_of(whole))
    # Everything kept is everything, in each evaluation.
    kept = lbfgs(RandomK(1.0)).fit(*digits)
    torch.testing.assert_close(parameters_of(kept), parameters_of(whole))


@pytest.mark.parametrize(
    "remembers",
    [
        ErrorFeedback(TopK(0.1)),
        Adaptive(ErrorFeedback(SignSGD()), lambda signals: None),
        Adaptive(QSGD(), lambda signals: ErrorFeedback(TopK(0.1))),
    ],
)
def test_error_feedback_is_refused_where_an_update_has_several_gradients(remembers, digits):
    with pytest.raises(UnsupportedError, match="evaluates gradients several times"):
        lbfgs(remembers).fit(*digits)
