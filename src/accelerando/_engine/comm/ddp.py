"""DDP all-reduce: PyTorch's DistributedDataParallel sums the gradients of the ranks.

In addition to the gradients, ranks agree on a few numbers in every update: the loss and the mass of
the global batch, and whether any rank asks to pause. They travel as the gradient of one more small
parameter, the *tail*, in a bucket with the others: adding ``tail · numbers`` to the loss makes the
numbers the gradient of that parameter. No update needs a second message.

A layer may be skipped: at random, or because no row of this rank needs it. DDP waits for a gradient
of every parameter, so the tail's summand reaches all of them (:class:`TailLoss`), and those that
were not used count as zero. If no rank has used a parameter, its ``.grad`` is None afterwards, as
in one process. Ranks ask each other about that only if a reduced gradient is zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando._decisions import fingerprint
from accelerando._engine._torch import after_backward, is_ddp_complaint, is_reentrant, release_ddp
from accelerando._engine.comm.communicator import (
    Gradient,
    LocalGradient,
    PartNorms,
    SingleProcess,
    Traffic,
    all_reduce_bytes,
)
from accelerando._engine.comm.compressed import CommHook, make_hook
from accelerando._engine.comm.feedback_memory import Memory
from accelerando._engine.comm.gradient_noise import RankNorms, part_norms
from accelerando._engine.comm.process_group import BucketSums, LostContact, ProcessGroup
from accelerando._engine.comm.sync_batchnorm import BatchStatistics, synchronize
from accelerando._engine.hints import no_graph, one_number
from accelerando._engine.micro_batch import net_couples_rows
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._decisions import Plan
    from accelerando._engine.data.feed import Batch, Shard
    from accelerando._engine.model import Model
    from accelerando._engine.row_norms import RowNorms
    from accelerando._engine.state import TrainState
    from accelerando.compress import Compressor

# The tail's numbers: the loss, the share of the batch's mass, a request to pause. With monitors or
# policies there are more: whether this rank has rows, the squared norm of its gradient, the seconds
# of the update before and those it waited, and the fingerprint of its plan.
_FEW, _ALL, _SQUARE = 3, 8, 4


class Carrier(nn.Module):
    """All modules, all criteria (they may have parameters, too) and the tail.

    The attribute names are part of the parameters' names, which seed the draws of codecs and are
    the keys of error feedback: do not rename them.
    """

    def __init__(self, module: nn.Module, criterion: Any, numbers: int, more: Any = ()) -> None:
        super().__init__()
        self.module = module
        self.criterion = criterion if isinstance(criterion, nn.Module) else None
        self.more = nn.ModuleList(part for part in more if isinstance(part, nn.Module))
        # A float64 tail in a float32 model would open a second bucket; a float32 tail in a float64
        # model would lose digits of the loss.
        dtypes = {p.dtype for p in self.parameters() if p.requires_grad}
        dtype = torch.float64 if dtypes == {torch.float64} else torch.float32
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        self.tail = nn.Parameter(torch.zeros(numbers, dtype=dtype, device=device))
        self.entered = False  # whether DDP has called the module in this micro-batch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.entered = True
        return self.module(*args, **kwargs)


class TailLoss(torch.autograd.Function):
    """``tail · numbers``, with an edge to every parameter, along which no gradient flows.

    Without a gradient nothing is added to ``.grad``, but DDP's hook fires.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tail: torch.Tensor,
        numbers: torch.Tensor,
        look: Callable[[], None],
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.look, ctx.count = look, len(parameters)
        ctx.save_for_backward(numbers)
        return tail.dot(numbers)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        after_backward(ctx.look)  # before DDP gives the missing gradients their zeros
        (numbers,) = ctx.saved_tensors
        return gradient * numbers, None, None, *[None] * ctx.count


class DDPAllReduce(SingleProcess):
    """Ranks that share every batch and average gradients.

    Parameters
    ----------
    model : Model
        With the module and the criterion.
    group : ProcessGroup
        The ranks.
    control_active : bool
        Whether there are monitors or policies, for which ranks exchange more numbers.
    looks_at_parts : bool
        Whether a monitor compares the gradients of the ranks.
    sums : bool
        Whether the loss is a sum over rows.
    compressor : Compressor, optional
        How gradients are encoded.
    memory : dict, optional
        What error feedback has not sent yet, from earlier groups of this rank.
    """

    def __init__(
        self,
        model: Model,
        group: ProcessGroup,
        *,
        control_active: bool,
        looks_at_parts: bool,
        sums: bool,
        compressor: Compressor | None = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.shard: Shard = group.shard
        self.ranks = size = group.shard.size
        self.alone = size == 1
        numbers = _ALL if control_active else _FEW
        self.carrier = Carrier(model.module, model.criterion, numbers, model.components.parts())
        self._model = model
        self._control_active = control_active
        self._sums = sums
        self._held = 0
        self._divided = False  # into micro-batches
        self._looked = False  # at the graph of the first loss
        tail = self.carrier.tail
        # A single rank has nobody to compare with; the loop compares micro-batches instead.
        self.norms = RankNorms(group, tail, _SQUARE) if looks_at_parts and size > 1 else None
        self.hook: CommHook | None = None
        if compressor is not None:
            self.hook = make_hook(compressor, self.carrier, group, {} if memory is None else memory)
        self._statistics: BatchStatistics | None = None
        if net_couples_rows(model.components):
            self._statistics = BatchStatistics(group)
            self._undo_batchnorm = synchronize(self.carrier, self._statistics)
        # DDP returns the mean over the ranks where the sum is wanted.
        self._factor = torch.tensor(float(size), device=tail.device)
        self.wrapped: DistributedDataParallel | None = self._wrap()
        n_bytes = sum(p.nbytes for p in self.carrier.parameters() if p.requires_grad)
        self._bytes = all_reduce_bytes(n_bytes, size)
        self._numbers = torch.zeros_like(tail.data)
        self._rest: tuple[float, ...] = (0.0, 0.0)
        self._mass = self._ready = 0.0
        self._loss: torch.Tensor | None = None
        self._noise: PartNorms | None = None
        learnable = [p for p in self.carrier.parameters() if p.requires_grad]
        self._learnable = [p for p in learnable if p is not tail]
        self._missing: set[int] = set()  # ids of the parameters that this rank did not use
        self._watch = self._watch_last_gradient()

    def _wrap(self) -> DistributedDataParallel:
        """Let DDP sum the gradients bucket by bucket during the backward pass."""
        tail = self.carrier.tail
        wrapped = DistributedDataParallel(
            self.carrier,
            process_group=self.group.processes,
            device_ids=[tail.device] if tail.is_cuda else None,
            init_sync=False,  # states are broadcast by the ranks
            forward_sync_buffers=False,  # statistics of BatchNorm are equal already
            gradient_as_bucket_view=True,
        )
        hook, sums = self.hook, BucketSums(self.group)
        if hook is not None:
            wrapped.register_comm_hook(None, lambda _, bucket: hook(bucket))
            return wrapped
        self._factor = torch.ones_like(self._factor)  # these hooks leave the sum
        if self.norms is not None:
            wrapped.register_comm_hook(None, self.norms.hook)
        else:
            wrapped.register_comm_hook(
                None, lambda _, bucket: sums.send(bucket.buffer(), last=bucket.is_last())
            )
        return wrapped

    def _watch_last_gradient(self) -> Any:
        """Note when this rank's gradients are complete; the rest is waiting for the others."""
        first = next(p for p in self.carrier.parameters() if p.requires_grad)

        def ready(_: torch.Tensor) -> None:
            self._ready = time.perf_counter()

        ready.belongs_to_a_rank = True  # type: ignore[attr-defined]
        return first.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Release the process group now, so that ranks that wait for this one fail, too."""
        self.release_model()
        self.group.close()

    def release_model(self) -> None:
        """Undo what was done to the model; the process group stays."""
        self._watch.remove()
        if self._statistics is not None:
            self._undo_batchnorm()
        if self.hook is not None:
            self.hook.close()
        if self.wrapped is not None:
            release_ddp(self.wrapped)
            self.wrapped = None

    # -- one update -------------------------------------------------------------------------------

    def begin_update(self, state: TrainState, plan: Plan, batch: Batch) -> None:
        self.group.seed(state.seed, state.position.update)
        if self._statistics is not None:
            self._statistics.begin(counts=batch.held > 0)
        self._held = batch.held
        if self._control_active:
            self.group.fingerprint = fingerprint(plan)
        if self.hook is not None:
            self.hook.begin(state.values(), state.seed)

    def look_at_rows(self, norms: RowNorms) -> None:
        if self.norms is not None:
            self.norms.rows = norms

    def module(self, module: nn.Module) -> Callable[..., Any]:
        return self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module in DDP, which may send its own message before: the order of buckets.

        An error before the module was entered is that of the message.
        """
        assert self.wrapped is not None
        self.carrier.entered = False
        try:
            return self.wrapped(*args, **kwargs)
        except RuntimeError as error:
            if self.carrier.entered:
                raise
            if is_ddp_complaint(error):
                raise UnsupportedError(
                    "Other parameters than before take part in training: the module's forward has "
                    "changed requires_grad. Freeze and thaw layers in on_epoch_begin of a "
                    "callback, or train in this process (client=None)."
                ) from error
            self.group.lost = str(error)
        raise LostContact(self.group.lost)

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        self._divided = True
        if last:
            return self._nothing
        assert self.wrapped is not None
        waiting: AbstractContextManager[object] = self.wrapped.no_sync()
        return waiting

    def backward(self, loss: torch.Tensor, mass: float, *, last: bool) -> None:
        if loss.dim():
            loss = one_number(loss)
        if not self.carrier.entered:
            raise UnsupportedError(
                "The estimator's infer does not call self.module_(...), but a method or a layer of "
                "it, and ranks share the gradients of calls of the module. Put what infer does "
                "into the module's forward, or train in this process (client=None)."
            )
        self.carrier.entered = False  # until the module is called again
        if not self._looked:
            self._looked = True
            if is_reentrant(loss):
                raise UnsupportedError(
                    "The module uses reentrant checkpointing, which DistributedDataParallel does "
                    "not support. Pass use_reentrant=False to torch.utils.checkpoint.checkpoint, "
                    "or train in this process (client=None)."
                )
        self._mass += mass
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if last and self._statistics is not None:
            loss = self._statistics.end(loss)
        if last:
            loss = loss + self._tail_loss()  # it reaches every parameter
        if self._factor.dtype != loss.dtype:
            self._factor = self._factor.to(loss)
        self.group.check_contact()
        with self.group.user_code():
            loss.backward(self._factor)  # type: ignore[no-untyped-call]
        if not last:
            return
        if self.shard.size == 1:  # nobody to agree with, and `reduce` may not look
            self.group.paused = self.group.paused or self.group.pause
        spent = Traffic(self._bytes, time.perf_counter() - self._ready)
        self.traffic = spent if self.hook is None else self.hook.traffic
        if self._statistics is not None:
            self.traffic = self.traffic.plus(self._statistics.take_traffic())

    def _tail_loss(self) -> torch.Tensor:
        """Return the summand of the loss whose gradient is the numbers to agree on."""
        tail, numbers = self.carrier.tail, self._numbers
        tail.grad = None
        assert self._loss is not None
        numbers[0] = self._loss
        more = self._control_numbers() if self._control_active else ()
        rest = (self._mass, float(self.group.pause), *more)
        if self._rest != rest:
            self._rest = rest
            numbers[1:] = torch.tensor(rest, dtype=numbers.dtype)
        self._mass, self._loss = 0.0, None
        reached = (numbers.clone(), self._look_for_missing, *self._learnable)
        total: torch.Tensor = TailLoss.apply(tail, *reached)  # type: ignore[no-untyped-call]
        return total

    def _look_for_missing(self) -> None:
        """Note which parameters this rank did not use; a rank without rows has used none."""
        self._missing = {id(p) for p in self._learnable if not self._held or p.grad is None}

    def drop_unused(self, zeros: Sequence[torch.Tensor]) -> None:
        hook, asked = self.hook, zeros
        if hook is not None and hook.remembers:  # what it held back is sent for unused ones, too
            asked = self._learnable
        if not asked and self._learnable:
            return
        used = torch.tensor([float(id(p) not in self._missing) for p in asked])
        if self.shard.size > 1:
            used = used.to(self.group.device)
            self.group.all_reduce(used)
        unused = [p for p, ranks in zip(asked, used.tolist(), strict=True) if not ranks]
        if len(unused) == len(self._learnable):
            raise no_graph(self._model.module)
        for parameter in unused:
            parameter.grad = None
        if hook is not None and unused:
            hook.forget(unused)

    def _control_numbers(self) -> tuple[float, ...]:
        """Return the numbers for monitors and policies."""
        mass, parts = float(self._held) if self._sums else self._mass, 0.0
        if self.norms is not None:
            parts = self.norms.begin(mass, self._held)
        return (parts, 0.0, *self.group.clock, self.group.fingerprint)

    def reduce(self, local: LocalGradient, parameters: Sequence[torch.Tensor]) -> Gradient:
        divided, self._divided = self._divided, False
        if self.alone and not divided:  # the loss is known, in full precision
            return super().reduce(local, parameters)
        agreed = self.carrier.tail.grad
        assert agreed is not None
        numbers = agreed.tolist()
        loss, mass, pause = numbers[:_FEW]
        if self._control_active:
            self._agree(numbers, mass)
        self.group.paused = self.group.paused or pause > 0
        # Gradients are divided by the true mass, which class weights and ignored targets change.
        # The threshold keeps the rounding of the summed masses from scaling every gradient.
        rounding = 1e-13 if agreed.dtype == torch.float64 else 1e-6
        if mass > 0 and abs(mass - 1.0) > rounding:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= mass
            loss /= mass
        noise = self._noise if local.noise is None else local.noise
        return Gradient(torch.tensor(loss, dtype=torch.float64), local.y_pred, noise)

    def _agree(self, numbers: list[float], mass: float) -> None:
        """Take over what all ranks said in addition to the loss."""
        _, _, pause, number, square, seconds, waited, planned = numbers
        self.group.agree(pause, (seconds, waited), planned)
        if self.norms is not None:
            square = self.norms.collect(square)
            mass = 1.0 if self._sums else mass
            self.norms.rows = None
            self._noise = part_norms(number, square / mass if mass > 0.0 else 0.0)

    # -- numbers ----------------------------------------------------------------------------------

    def sum(self, *numbers: float) -> list[float]:
        return self.group.sum(*numbers)

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        self.group.sum_gradients(parameters)

    def mean_seconds(self, seconds: float) -> tuple[float, float]:
        return self.group.mean_seconds(seconds, self.traffic.wait_seconds)
