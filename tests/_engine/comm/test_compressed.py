"""Compressed gradients in one process and in DDP."""

import pytest
import torch

from accelerando._engine.comm.compressed import CodecHook, CompressedSingle, PowerHook, make_hook
from accelerando._engine.comm.ddp import Carrier, DDPAllReduce
from accelerando.compress import QSGD, Atomo, ErrorFeedback, PowerSGD, TopK
from tests._engine.comm.ranks import column, fit_of, flat, model_of, on_ranks, train

HIDDEN = 400  # so that a matrix is large enough to be encoded


def wide():
    return model_of(hidden=HIDDEN, lr=0.05)


def single(compressor, **settings):
    return train(fit_of(wide(), lambda spec: CompressedSingle(compressor), **settings))


def test_one_process_steps_with_what_it_would_send():
    whole = flat(train(fit_of(wide())).model.module)
    fine, coarse = (flat(single(QSGD(bits=bits)).model.module) for bits in (8, 1))
    assert not torch.equal(fine, whole)
    assert (fine - whole).norm() < (coarse - whole).norm()
    kept = flat(single(TopK(1.0)).model.module)
    torch.testing.assert_close(kept, whole)


def test_one_process_sends_nothing_and_spends_time():
    fit = single(QSGD(bits=4))
    assert set(column(fit, "bytes")) == {0.0}
    assert min(column(fit, "encode_seconds")) > 0
    assert min(column(fit, "decode_seconds")) > 0


def test_gradients_are_encoded_after_the_last_micro_batch():
    """The sum is encoded, not every part of it."""
    fit = fit_of(wide(), lambda spec: CompressedSingle(QSGD(bits=4)))
    fit.state.micro_batch.whole, fit.state.micro_batch.fixed = False, 5
    parts = train(fit)
    torch.testing.assert_close(flat(parts.model.module), flat(single(QSGD(bits=4)).model.module))


def test_a_repeated_run_draws_the_same():
    assert torch.equal(*(flat(single(QSGD(bits=2)).model.module) for _ in range(2)))


def ranks(compressor, size=2, memories=None, **settings):
    """Train on ranks; return their parameters and fits."""
    models = [wide() for _ in range(size)]
    kept = []

    def work(group):
        def make(spec):
            return DDPAllReduce(
                models[group.shard.rank],
                group,
                control_active=False,
                looks_at_parts=False,
                sums=False,
                compressor=compressor,
                memory=None if memories is None else memories[group.shard.rank],
            )

        # PowerSGD's threads may be the last to drop the group, which must not join itself.
        kept.append(group.processes)
        fit = fit_of(models[group.shard.rank], make, **settings)
        train(fit)
        fit.comm.close()
        return fit

    return on_ranks(size, work)


@pytest.mark.parametrize("codec", [QSGD(bits=4), Atomo(budget=2), ErrorFeedback(TopK(0.2))])
def test_ranks_agree_bit_for_bit_and_send_less(codec):
    fits = ranks(codec)
    first, other = (flat(fit.model.module) for fit in fits)
    assert torch.equal(first, other)
    whole = flat(train(fit_of(wide())).model.module)
    assert 0 < (first - whole).norm() < 0.5 * (whole - flat(wide().module)).norm()
    plain = ranks(None)[0]
    assert max(column(fits[0], "bytes")[2:]) < min(column(plain, "bytes"))


def test_what_loses_nothing_is_all_reduce():
    found = flat(ranks(TopK(1.0))[0].model.module)
    torch.testing.assert_close(found, flat(ranks(None)[0].model.module))


def test_error_feedback_is_kept_by_the_rank_under_the_carriers_names():
    memories = [{}, {}]
    ranks(ErrorFeedback(TopK(0.1)), memories=memories)
    names = {"module.first.weight", "module.last.weight"}
    assert [set(memory) for memory in memories] == [names] * 2
    assert all(memory["module.first.weight"].norm() > 0 for memory in memories)


def test_a_hook_for_every_compressor():
    def work(group):
        carrier = Carrier(wide().module, None, 3)
        assert isinstance(make_hook(QSGD(), carrier, group, {}), CodecHook)
        hook = make_hook(PowerSGD(), carrier, group, {})
        assert isinstance(hook, PowerHook)
        hook.close()

    on_ranks(1, work)


def test_power_sgd_starts_after_some_updates():
    (fit,) = ranks(PowerSGD(rank=1, start=2), size=1)
    (plain,) = ranks(None, size=1)
    losses, others = column(fit, "loss"), column(plain, "loss")
    # `start` counts from the second update on: in the first one DDP finds its buckets.
    assert losses[:4] == others[:4]
    assert losses[4:] != others[4:]
