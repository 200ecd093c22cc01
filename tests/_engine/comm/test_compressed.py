"""Compressed gradients in one process and in DDP."""

import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from accelerando._engine.comm import compressed
from accelerando._engine.comm.compressed import (
    CodecHook,
    CompressedSingle,
    LentGroup,
    PowerHook,
    make_hook,
)
from accelerando._engine.comm.ddp import Carrier, DDPAllReduce
from accelerando._engine.comm.process_group import LostContact, ProcessGroup
from accelerando.compress import QSGD, Atomo, ErrorFeedback, PowerSGD, TopK
from tests._engine.comm.ranks import CPU, column, fit_of, flat, model_of, on_ranks, train

HIDDEN = 400  # so that a matrix is large enough to be encoded


def wide(hidden=HIDDEN):
    return model_of(hidden=hidden, lr=0.05)


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


def ranks(compressor, size=2, memories=None, hidden=HIDDEN, **settings):
    """Train on ranks; return their parameters and fits."""
    models = [wide(hidden) for _ in range(size)]

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


@pytest.mark.parametrize(("size", "hidden"), [(2, HIDDEN), (4, 800)], ids=["2 ranks", "4 ranks"])
def test_what_loses_nothing_is_all_reduce(size, hidden):
    """Four ranks each add up a shard; loss and mass, which travel with the gradient, are cut."""
    coded, plain = (ranks(one, size, hidden=hidden) for one in (TopK(1.0), None))
    torch.testing.assert_close(flat(coded[0].model.module), flat(plain[0].model.module))
    torch.testing.assert_close(column(coded[0], "loss"), column(plain[0], "loss"))


def test_four_ranks_agree_bit_for_bit_and_remember_both_phases():
    memories = [{} for _ in range(4)]
    fits = ranks(ErrorFeedback(TopK(0.1)), 4, memories=memories, hidden=800)
    first, *others = (flat(fit.model.module) for fit in fits)
    assert all(torch.equal(first, other) for other in others)
    parts = [{name for name in memory if " rows " in name} for memory in memories]
    assert sum(map(bool, parts)) > 1
    assert len(set.union(*parts)) == sum(map(len, parts))  # each row belongs to one rank


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


class Forwarded:
    """PyTorch's group under another reference: its own destructor would wait for its threads."""

    def __init__(self, processes):
        self.rank, self.size, self.allreduce = processes.rank, processes.size, processes.allreduce


def test_a_thread_of_the_group_does_not_hold_it_when_power_sgd_is_closed(monkeypatch):
    """It would join itself, and end the process."""
    exchange, kept = compressed.power.powerSGD_hook, []
    attached, entered, leave = threading.Event(), threading.Event(), threading.Event()

    def linger(future):
        """Keep a thread of the group in the middle of PyTorch's functions."""
        entered.set()
        leave.wait(60)
        return future.value()

    def attach(state, bucket):
        future = exchange(state, bucket)
        if state.process_group.size() == 2 and not attached.is_set():
            kept.append(future.then(linger))
            attached.set()
        return future

    monkeypatch.setattr(compressed.power, "powerSGD_hook", attach)

    def work(group):
        lone = ProcessGroup(Forwarded(group.processes), CPU)
        hook = PowerHook(PowerSGD(rank=1, start=2), lone)
        hook._state.iter = 3  # past the update in which DDP finds its buckets
        buffer = torch.ones(1230)
        gradients = [buffer[:1200].view(40, 30), buffer[1200:]]  # the second is sent as it is
        bucket = SimpleNamespace(
            buffer=lambda: buffer, index=lambda: 0, gradients=lambda: gradients,
            is_last=lambda: True,
        )  # fmt: skip
        first = group.shard.rank == 0
        if not first:
            assert attached.wait(60)
        hook(bucket)
        if not first:
            return hook.close()
        assert entered.wait(60)
        forwarded = weakref.ref(lone.processes)
        hook.close()
        lone.close()
        held = forwarded() is not None
        leave.set()
        kept[0].wait()
        assert not held

    on_ranks(2, work)


def test_a_lent_group_sends_nothing_after_it_was_closed():
    def work(group):
        lent = LentGroup(group)
        lent.close()
        with pytest.raises(LostContact, match="has left"):
            lent.allreduce([torch.ones(1)], None)
        group.sum(1.0)  # the group itself is still there

    on_ranks(1, work)
