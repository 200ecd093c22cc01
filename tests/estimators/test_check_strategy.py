"""What averaging, compression and gathered outputs cannot be combined with is refused."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accelerando.batch_size import AdaDamp
from accelerando.compress import QSGD, Adaptive, ErrorFeedback, PowerSGD, TopK
from accelerando.estimators._check_strategy import check_compressor, check_gather, check_measures
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import GradientNoiseScale
from accelerando.sync import AllReduce, PeriodicAveraging
from tests.nets import classifier


def net_with(optimizer=torch.optim.SGD):
    return classifier(optimizer=optimizer).initialize()


@pytest.mark.parametrize(
    ("strategy", "micro_batch_size", "named"),
    [
        (PeriodicAveraging(4), "auto", r"sync=PeriodicAveraging\(period=4"),
        (AllReduce(), 16, "micro_batch_size=16 divides it"),
    ],
)
def test_gathering_fits_neither_averaging_nor_a_size_of_micro_batches(
    strategy, micro_batch_size, named
):
    with pytest.raises(UnsupportedError, match=named):
        check_gather(SimpleNamespace(micro_batch_size=micro_batch_size), strategy)
    check_gather(SimpleNamespace(micro_batch_size="auto"), AllReduce())


def test_gathering_fits_nothing_that_looks_at_parts_of_a_batch():
    def fit(policies=(), monitors=()):
        return SimpleNamespace(control=SimpleNamespace(policies=policies, monitors=monitors))

    check_measures(fit())
    with pytest.raises(UnsupportedError, match="AdaDamp measures on the training set part by part"):
        check_measures(fit(policies=[AdaDamp(initial=8)]))
    with pytest.raises(UnsupportedError, match="GradientNoiseScale compares the gradients of part"):
        check_measures(fit(monitors=[GradientNoiseScale()]))


def test_powersgd_needs_ranks():
    with pytest.raises(UnsupportedError, match="without a client there is only this process"):
        check_compressor(net_with(), PowerSGD(), AllReduce())


@pytest.mark.parametrize(
    "compressor",
    [ErrorFeedback(TopK(0.1)), Adaptive(ErrorFeedback(TopK(0.1)), lambda signals: None)],
    ids=["feedback", "adaptive"],
)
def test_a_memory_does_not_fit_an_optimizer_that_compares_gradients(compressor):
    with pytest.raises(UnsupportedError, match="LBFGS evaluates gradients several times"):
        check_compressor(net_with(torch.optim.LBFGS), compressor, AllReduce())
    check_compressor(net_with(), compressor, AllReduce())
    check_compressor(net_with(torch.optim.LBFGS), QSGD(), AllReduce())


def test_sparse_gradients_are_refused_before_training():
    net = classifier(
        nn.Embedding, module__num_embeddings=5, module__embedding_dim=3, module__sparse=True
    ).initialize()
    with pytest.raises(UnsupportedError, match="sparse"):
        check_compressor(net, QSGD(), AllReduce())


def test_powersgd_adds_gradients_up_and_averaging_sends_parameters():
    with pytest.raises(UnsupportedError, match="ranks exchange differences of parameters"):
        check_compressor(net_with(), PowerSGD(), PeriodicAveraging(4))
    check_compressor(net_with(), ErrorFeedback(TopK(0.1)), PeriodicAveraging(4))


def test_a_codec_that_sends_more_than_it_saves_is_named_after_the_first_epoch(digits):
    """Two ranks, 0.6 MB: positions come on top of numbers that are all sent."""
    X, y = digits[0][:64], digits[1][:64]
    settings = {
        "module__hidden": 2048, "sync": PeriodicAveraging(1), "virtual_ranks": 2,
        "batch_size": 16, "train_split": None,
    }  # fmt: skip
    net = classifier(compression=TopK(1.0), max_epochs=1, **settings)
    message = r"TopK\(fraction=1.0, bits=None\) does not pay: an exchange took 1\.\d times the byt"
    with pytest.warns(UserWarning, match=message) as found:
        net.fit(X, y)
    net.partial_fit(X, y)
    assert len(found) == 1  # no warning with later epochs
    classifier(compression=QSGD(), max_epochs=1, **settings).fit(X, y)  # and none at all
