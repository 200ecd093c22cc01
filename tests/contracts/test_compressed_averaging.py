"""Every averaging strategy with every codec: ``sync=`` together with ``compression=``."""

import numpy as np
import pytest
import torch

from accelerando.compress import (
    QSGD,
    Adaptive,
    Atomo,
    ErrorFeedback,
    HalfPrecision,
    TernGrad,
    TopK,
)
from accelerando.sync import (
    AdaptiveAveraging,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    OuterOptimizer,
    PeriodicAveraging,
)
from tests.nets import MLP, classifier, parameters_of

RANKS = 4
STRATEGIES = {
    "periodic": PeriodicAveraging(3),
    "periodic, momentum averaged": PeriodicAveraging(3, optimizer_state="average"),
    "adaptive": AdaptiveAveraging(2, sample=0.4),
    "decreasing": DecreasingAveraging(6, every_epochs=1),
    "model": ModelAveraging(RANKS, momentum=0.3),
    "model, now and then": ModelAveraging(RANKS, correction=0.1, period=3),
    "elastic": ElasticAveraging(period=3, beta=0.8),
    "outer": OuterOptimizer(inner_steps=3, lr=0.8, momentum=0.5),
}
CODECS = {
    "half": HalfPrecision(),
    "qsgd": QSGD(bits=4),
    "terngrad": ErrorFeedback(TernGrad(bucket=256)),
    "top-k": ErrorFeedback(TopK(0.1)),
    "top-k, 2 bits": ErrorFeedback(TopK(0.05, bits=2)),
    "atomo": Atomo(share=0.2),
    "adaptive": Adaptive(QSGD(bits=2), lambda signals: {"bits": min(8, 2 + signals.epoch)}),
}
LOSSLESS = TopK(1.0)
EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


# With the wider network each rank has a shard that is worth encoding.
EXCHANGES = pytest.mark.parametrize("hidden", [48, 96], ids=["all to all", "two phases"])


class Wide(MLP):
    def __init__(self, hidden=48, **params):
        super().__init__(hidden=hidden, **params)


def ranks(sync, compression, **params):
    settings = {
        "batch_size": 20, "virtual_ranks": RANKS, "optimizer__momentum": 0.9, "lr": 0.02,
        "module__norm": True, "module__dropout": 0.2, "max_epochs": 2, "train_split": None,
        **params,
    }  # fmt: skip
    return classifier(Wide, sync=sync, compression=compression, **settings)


@pytest.fixture(scope="module")
def rows(digits):
    return digits[0][:480], digits[1][:480]


@EVERY_STRATEGY
def test_a_codec_that_loses_nothing_changes_nothing(strategy, rows):
    """Differences are added to what they were taken from: only rounding is left."""
    sync = STRATEGIES[strategy]
    plain, coded = (ranks(sync, one).fit(*rows) for one in (None, LOSSLESS))
    torch.testing.assert_close(parameters_of(coded), parameters_of(plain), rtol=0, atol=2e-5)
    averagings = [net.updates_frame()["averagings"].iloc[-1] for net in (plain, coded)]
    assert averagings[0] == averagings[1] > 0


PAIRS = [
    *((strategy, codec) for strategy in STRATEGIES for codec in ("qsgd", "top-k")),
    *(("periodic", codec) for codec in CODECS if codec not in ("qsgd", "top-k")),
]


@EXCHANGES
@pytest.mark.parametrize(("strategy", "codec"), PAIRS)
def test_every_pair_learns_with_fewer_bytes(strategy, codec, hidden, rows):
    net = ranks(STRATEGIES[strategy], CODECS[codec], max_epochs=6, module__hidden=hidden)
    net.fit(*rows)
    assert net.score(*rows) > 0.6
    frame = net.updates_frame()
    # If all ranks send to all, four send as many bytes with 16 bits as a ring does with 32.
    half = 1.3 if hidden == 48 else 0.75
    whole = 2 * (RANKS - 1) * parameters_of(net).numel() * 4
    averaged = frame[frame["encode_seconds"] > 0]
    assert 0 < len(averaged) <= len(frame)
    assert (averaged["decode_seconds"] > 0).all()
    if "momentum averaged" not in strategy:  # which travels as it is
        assert averaged["bytes"].max() < (half if codec == "half" else 0.9 * half) * whole


@EXCHANGES
@pytest.mark.parametrize(
    ("strategy", "codec"), [("outer", "qsgd"), *(("periodic", codec) for codec in CODECS)]
)
def test_all_replicas_agree_bit_for_bit_after_an_averaging(strategy, codec, hidden, rows):
    net = ranks(STRATEGIES[strategy], CODECS[codec], max_epochs=1, module__hidden=hidden)
    net.fit(*rows)
    assert len(net.updates_frame()) % 3 == 0  # the last update ended with an averaging
    replicas = net._state_.replicas
    first = [replicas.tensors[0][n] for n in replicas.flat.numbers]
    for other in replicas.tensors[1:]:
        assert all(map(torch.equal, first, (other[n] for n in replicas.flat.numbers)))
    flat = replicas.flat.flatten(replicas.tensors[0])[: replicas.flat.n_parameters]
    assert all(map(torch.equal, replicas.agreed, flat))


@EXCHANGES
@pytest.mark.parametrize("strategy", ["periodic", "model, now and then", "outer"])
@pytest.mark.parametrize("codec", ["qsgd", "top-k"])
def test_a_run_that_is_saved_between_two_averagings_continues_bit_for_bit(
    strategy, codec, hidden, rows, tmp_path
):
    """The memory of error feedback and what was agreed on last are parts of the state."""
    sync, compression = STRATEGIES[strategy], CODECS[codec]
    few = {"batch_size": 17, "module__hidden": hidden}
    whole = ranks(sync, compression, max_epochs=4, **few).fit(*rows)
    half = ranks(sync, compression, max_epochs=2, **few).fit(*rows)
    assert half._state_.averaging.since > 0
    half.save_state(tmp_path / "state.pt")
    rest = ranks(sync, compression, max_epochs=2, **few)
    rest.initialize().load_state(tmp_path / "state.pt")
    rest.partial_fit(*rows)
    assert torch.equal(parameters_of(rest), parameters_of(whole))
    if codec == "top-k":
        memories = [net._state_.replicas.memories for net in (rest, whole)]
        assert any(one is not None for one in memories[0][0].values())
        second = [" rows " in name for memory in memories[0] for name in memory]
        assert any(second) == (hidden == 96)  # what the second phase left out is saved, too
        for mine, other in zip(*memories, strict=True):
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_error_feedback_sends_later_what_it_left_out(rows):
    """Without a memory, nine tenths of every change would be lost."""
    sync = PeriodicAveraging(3)
    plain, lost, kept = (
        ranks(sync, one, max_epochs=8, module__dropout=0.0).fit(*rows)
        for one in (None, TopK(0.05), ErrorFeedback(TopK(0.05)))
    )
    losses = [net.updates_frame()["loss"].iloc[-4:].mean() for net in (plain, kept, lost)]
    assert losses[0] < losses[1] < losses[2]
    assert losses[1] - losses[0] < 0.6 * (losses[2] - losses[0])


def test_a_state_that_was_saved_without_compression_continues_with_it(rows, tmp_path):
    half = ranks(PeriodicAveraging(3), None, max_epochs=2, batch_size=17).fit(*rows)
    assert half._state_.averaging.since > 0  # replicas differ
    half.save_state(tmp_path / "state.pt")
    rest = ranks(PeriodicAveraging(3), QSGD(bits=8), max_epochs=4, batch_size=17)
    rest.initialize().load_state(tmp_path / "state.pt")
    rest.partial_fit(*rows)
    assert rest.score(*rows) >= half.score(*rows) - 0.02
    assert np.isfinite(rest.updates_frame()["loss"]).all()


@pytest.mark.parametrize("others", [2, 6])
@pytest.mark.parametrize("saves", [True, False], ids=["saved", "continued"])
def test_another_number_of_ranks_inherits_what_was_not_sent_yet(others, saves, rows, tmp_path):
    few = {"module__hidden": 96, "batch_size": 17}
    seldom = PeriodicAveraging(3)
    half = ranks(seldom, CODECS["top-k"], max_epochs=2, **few).fit(*rows)

    def unsent(net):
        memories = net._state_.replicas.memories
        found = {name: 0.0 for memory in memories for name in memory}
        for memory in memories:
            for name, left in memory.items():
                found[name] = found[name] + (0.0 if left is None else left.double())
        return found

    before, rest = unsent(half), half
    if saves:
        half.save_state(tmp_path / "state.pt")
        rest = ranks(seldom, CODECS["top-k"], **few)
        rest.initialize().load_state(tmp_path / "state.pt")
    # One epoch of one update: replicas do not meet.
    rest.set_params(max_epochs=1, virtual_ranks=others, batch_size=len(rows[0]) // others)
    rest.partial_fit(*rows)
    after = unsent(rest)
    assert before.keys() == after.keys()
    for name, left in before.items():
        torch.testing.assert_close(after[name], left, rtol=0, atol=1e-6)
