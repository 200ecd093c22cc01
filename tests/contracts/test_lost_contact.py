"""An error means lost contact by where it arises: every error of a message, at every place.

The same error, raised by the user's module, criterion, optimizer or callback, stays the user's.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accelerando._engine.comm.ddp import DDPAllReduce
from accelerando._engine.comm.process_group import LostContact, ProcessGroup, form
from accelerando._engine.data.feed import Batch, Shard
from accelerando._engine.step import update
from accelerando.compress import TopK
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import GradientNoiseScale
from tests._engine.comm.ranks import MLP, data_of, fit_of, model_of, plan_of

CPU = torch.device("cpu")
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
# What gloo, NCCL and c10d's store raise in PyTorch 2.13: from their sources.
ERRORS = [
    RuntimeError(f"{GLOO}pair.cc:547] Connection closed by peer [127.0.0.1]:4242"),
    RuntimeError(f"{GLOO}pair.cc:534] Read error [127.0.0.1]:4242: Connection reset by peer"),
    RuntimeError(f"{GLOO}pair.cc:598] Write error: Broken pipe"),
    RuntimeError(f"{GLOO}unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation"),
    RuntimeError(f"{GLOO}unbound_buffer.cc:133] Timed out waiting 10000ms for send operation"),
    RuntimeError("Application timeout caused pair closure"),
    RuntimeError(f"{GLOO}pair.cc:224] Application timeout caused pair closure"),
    RuntimeError(f"{GLOO}pair.cc:144] timed out connecting: Connection refused"),
    RuntimeError(f"{GLOO}pair.cc:166] Connect timeout [10.0.0.2]:4242"),
    RuntimeError(f"{GLOO}pair.cc:400] read: No route to host"),
    RuntimeError(
        "[enforce fail at /gloo/transport/tcp/pair.cc:450] op.preamble.length <= op.nbytes"
    ),
    RuntimeError("Gloo connectFullMesh failed with timeout"),
    RuntimeError("aborted"),
    RuntimeError("NCCL communicator was aborted on rank 1."),
    dist.DistBackendError("NCCL error: remote process exited or there was a network error"),
    dist.DistBackendError("ncclSystemError: System call (e.g. socket, malloc) or external library"),
    dist.DistBackendError("[Rank 0] Watchdog caught collective operation timeout"),
    dist.DistNetworkError("The client socket has timed out after 60000ms while trying to connect"),
    dist.DistNetworkError("failed to recv, got 0 bytes. Connection was likely closed."),
    dist.DistStoreError("wait timeout after 60000ms, keys: /default_pg/0//0//cpu/1/rank_0"),
    dist.DistError("Socket Timeout"),
    OSError(104, "Connection reset by peer"),
]


class Work:
    """A message that has arrived, or that fails when it is awaited."""

    def __init__(self, error=None):
        self.error = error

    def wait(self, *_):
        if self.error is not None:
            raise self.error


class Broken:
    """Another rank that answers nothing: messages fail when they are sent, or when awaited."""

    def __init__(self, error, when):
        self.error, self.when = error, when

    def __getattr__(self, name):
        def operation(*_):
            if self.when == "sent":
                raise self.error
            return Work(self.error)

        return operation


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ctx.error


class Net(MLP):
    """The user's module, which may fail."""

    error = place = None

    def forward(self, x):
        if self.place == "forward":
            raise self.error
        y = super().forward(x)
        return Failing.apply(y, self.error) if self.place == "backward" else y


class Loss(nn.CrossEntropyLoss):
    error = None

    def forward(self, *args):
        if self.error is not None:
            raise self.error
        return super().forward(*args)


def fit_with(*, norm=False, compressor=None, monitors=()):
    """Return the fit of a rank of a group whose other rank can be broken."""
    formed = form(dist.HashStore(), 0, 1, seconds=5.0, address="127.0.0.1", device=CPU)
    group = ProcessGroup(formed, CPU)
    model = model_of(Net, norm=norm, hidden=400, criterion=Loss())

    def make(spec):
        # Two ranks, of which only this one exists.
        comm = DDPAllReduce(
            model,
            group,
            control_active=spec.control.active,
            looks_at_parts=bool(spec.control.looks_at_parts),
            sums=spec.sums,
            compressor=compressor,
        )
        group.shard = Shard(0, 2)
        return comm

    return fit_of(model, make, monitors=monitors)


def train(fit):
    update(fit, plan_of(12), Batch(data_of(6), 12, None, 6))


MESSAGES = {
    "a bucket": {},
    "a bucket that is measured": {"monitors": (GradientNoiseScale(),)},
    "a compressed bucket": {"compressor": TopK(0.1)},
    "statistics of BatchNorm": {"norm": True},
}


@pytest.mark.parametrize("when", ["sent", "awaited"])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_fails_is_a_loss_of_contact(message, when):
    for error in ERRORS:
        fit = fit_with(**MESSAGES[message])
        group = fit.comm.group
        group._processes = Broken(error, when)
        with pytest.raises(LostContact):
            train(fit)
        assert group.lost == str(error)
        fit.comm.close()


@pytest.mark.parametrize("when", ["sent", "awaited"])
@pytest.mark.parametrize("call", ["sum", "all_reduce", "broadcast"])
def test_every_method_of_a_group(call, when):
    for error in ERRORS:
        group = fit_with().comm.group
        group._processes = Broken(error, when)
        argument = {"sum": (1.0,), "all_reduce": (torch.ones(2),), "broadcast": (b"x", 0)}
        with pytest.raises(LostContact):
            getattr(group, call)(*argument[call])


def test_the_order_of_buckets_is_a_message_of_ddp_itself():
    for error in ERRORS:
        if not isinstance(error, RuntimeError):
            continue  # C++ raises none
        fit = fit_with()

        def forward(*_, error=error):
            raise error

        fit.comm.wrapped._pre_forward = forward
        with pytest.raises(LostContact):
            train(fit)
        fit.comm.close()


@pytest.mark.parametrize("place", ["forward", "backward", "loss", "step", "callback"])
def test_the_users_error_with_the_same_text_stays_the_users(place):
    for error in ERRORS:
        fit = fit_with()
        fit.comm.group._processes = Broken(None, "awaited")

        def fail(*_, error=error, **__):
            raise error

        if place == "loss":
            fit.model.criterion.error = error
        elif place == "step":
            fit.model.optimizers[0].step = fail
        elif place == "callback":
            fit.hooks.gradients_ready = fail
        else:
            fit.model.module.place, fit.model.module.error = place, error
        with pytest.raises(type(error)) as caught:
            train(fit)
        assert not isinstance(caught.value, LostContact)
        assert fit.comm.group.lost is None
        fit.comm.close()


def test_ddps_own_complaint_about_the_module_is_the_users():
    fit = fit_with()

    def forward(*_):
        raise RuntimeError("Expected to have finished reduction in the prior iteration before ...")

    fit.comm.wrapped._pre_forward = forward
    with pytest.raises(UnsupportedError, match="requires_grad") as caught:
        train(fit)
    assert str(caught.value.__cause__).startswith("Expected")
    fit.comm.close()


def test_a_module_that_swallows_the_error_takes_no_step():
    fit = fit_with(norm=True)
    module, group = fit.model.module, fit.comm.group
    group._processes = Broken(ERRORS[0], "awaited")
    inner = module.forward

    def forward(x):
        try:
            return inner(x)
        except RuntimeError:
            return module.last(module.first(x))

    module.forward = forward
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(LostContact):
        train(fit)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    fit.comm.close()


def test_out_of_memory_in_a_message_is_this_ranks_own():
    group = fit_with().comm.group
    group._processes = Broken(torch.OutOfMemoryError("CUDA out of memory"), "sent")
    with pytest.raises(torch.OutOfMemoryError):
        group.sum(1.0)
    assert group.lost is None
