"""The ranks of one segment as a world: gradients meet in PyTorch's DistributedDataParallel.

Beside the gradients an update needs a few numbers that all ranks agree on: the loss and the mass of
the whole batch, and whether anybody wants to pause. They travel as the gradient of one more small
parameter, the *tail*, in a bucket with the others: adding ``tail · numbers`` to the loss makes the
numbers that parameter's gradient. No update needs a second message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando.sync import ring_bytes
from accelerando.train.cluster.contact import Contact
from accelerando.train.cluster.hook import Memory, make_hook
from accelerando.train.cluster.norm import Statistics, synchronized
from accelerando.train.cluster.squares import LocalSquares
from accelerando.train.exchange import pieces_of
from accelerando.train.gradient import grad_norm
from accelerando.train.parts import Parts
from accelerando.train.world import Traffic

# The tail's numbers: the loss, the share of the batch's mass, the wish to pause. With monitors or
# policies there are more: whether this rank has rows, the squared norm of its gradient, the seconds
# of the update before and those it waited, and a fingerprint of what its policies decided.
_FEW, _ALL, _SQUARE = 3, 8, 4


class Carrier(nn.Module):
    """The module, the criterion (it may have parameters, too) and the tail."""

    def __init__(self, module: nn.Module, criterion: Any, numbers: int) -> None:
        super().__init__()
        self.module = module
        self.criterion = criterion if isinstance(criterion, nn.Module) else None
        kinds = {p.dtype for p in self.parameters() if p.requires_grad}
        dtype = torch.float64 if kinds == {torch.float64} else torch.float32
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        self.tail = nn.Parameter(torch.zeros(numbers, dtype=dtype, device=device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class Group(Contact):
    """One rank's end of a process group.

    Parameters
    ----------
    net : estimator
        With the module, criterion and device to train.
    processes : torch.distributed.ProcessGroup
        See :func:`form`.
    unused : bool
        Whether some parameters may get no gradient in some updates. DDP is not made for that, so
        that gradients then meet after the backward pass and not during it.
    memory : dict, optional
        What error feedback remembers from the groups this rank was in before.
    """

    def __init__(
        self, net: Any, processes: Any, *, unused: bool, memory: Memory | None = None
    ) -> None:
        super().__init__(processes, torch.device(net.device or "cpu"))
        self._net = net
        self.alone = self.part.size == 1
        control = net.control_
        self._talks = control.active
        self.carrier = Carrier(net.module_, net.criterion_, _ALL if self._talks else _FEW)
        self._sums = getattr(net.criterion_, "reduction", "mean") == "sum"
        self._held = 0
        # Alone there is nobody to compare with; the loop looks at micro-batches instead.
        looks = control.looks_at_parts and self.part.size > 1
        tail = self.carrier.tail
        self.squares = LocalSquares(processes, tail, _SQUARE) if looks else None
        memory = {} if memory is None else memory
        self.hook = make_hook(net.compressor(), self.carrier, processes, memory)
        self._statistics = Statistics(processes)
        self._undo_norm = synchronized(net.module_, self._statistics)
        # DDP takes the mean over the ranks where the sum is wanted.
        self._factor = torch.tensor(float(self.part.size), device=tail.device)
        self.wrapped: Any = None
        if not unused:
            self.wrap()
        size = sum(p.nbytes for p in self.carrier.parameters() if p.requires_grad)
        self._bytes = ring_bytes(size, self.part.size)
        self._numbers = torch.zeros_like(self.carrier.tail.data)
        self._rest: tuple[float, ...] = (0.0, 0.0)
        self._share = 0.0
        self._loss: torch.Tensor | None = None
        self._ready = 0.0
        self._watch = self._watch_last_gradient()

    def wrap(self) -> None:
        """Let gradients meet in PyTorch's DDP: bucket by bucket, during the backward pass."""
        on_gpu = self.carrier.tail.is_cuda
        self.wrapped = DistributedDataParallel(
            self.carrier,
            process_group=self.processes,
            device_ids=[self.carrier.tail.device] if on_gpu else None,
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        hook = self.hook
        if hook is not None:
            self.wrapped.register_comm_hook(None, lambda _, bucket: hook(bucket))
        elif self.squares is not None:
            self.wrapped.register_comm_hook(None, self.squares.meet)
            self._factor = torch.ones_like(self._factor)  # with a hook it leaves the sum

    def _watch_last_gradient(self) -> Any:
        """Note when this rank's own gradients are complete; what follows is waiting for others."""
        first = next(p for p in self.carrier.parameters() if p.requires_grad)

        def ready(_: torch.Tensor) -> None:
            self._ready = time.perf_counter()

        return first.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Drop the process group now, so that ranks that wait for this one fail at once, too."""
        self._watch.remove()
        self._undo_norm()
        if self.hook is not None:
            self.hook.close()
        if self.wrapped is not None:
            # DDP's hooks keep it in reference cycles that only the garbage collector would find.
            self.wrapped.reducer = self.wrapped.logger = self.wrapped.process_group = None
        if self.squares is not None:
            self.squares.processes = None
        self.wrapped = self.processes = self._statistics.processes = None

    # -- one update -----------------------------------------------------------------------------

    def begin_update(self, seed: int, update: int, held: int) -> None:
        """Prepare an update in which this rank holds so many rows."""
        self.seed(seed, update)
        self._statistics.counts = held > 0
        self._held = held
        if self.hook is not None:
            self.hook.begin(self._net.run_.signals(), seed)

    def forward(self, net: Any, X: Any, fit_params: Any, *, plain: bool) -> Any:
        module = self.wrapped or self.carrier
        if plain:
            return module(X)
        with _standing_in(net, module):
            return net.infer(X, **fit_params)

    def passing(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()

    def backward(self, loss: torch.Tensor, share: float, *, last: bool) -> None:
        self._share += share
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if last:
            tail, numbers = self.carrier.tail, self._numbers
            tail.grad = None
            numbers[0] = self._loss
            rest = (self._share, float(self.pause), *(self._more() if self._talks else ()))
            if self._rest != rest:
                self._rest = rest
                numbers[1:] = torch.tensor(rest)
            loss = loss + tail.dot(numbers)
            self._share, self._loss = 0.0, None
        if self._factor.dtype != loss.dtype:
            self._factor = self._factor.to(loss)
        loss.backward(self._factor)  # type: ignore[no-untyped-call]
        if not last:
            return
        if self.part.size == 1:  # nobody to agree with
            self.paused = self.paused or self.pause
        if self.wrapped is None:
            self._meet()
        if self.hook is not None and (self.wrapped is not None or self.hook.meets):
            self.traffic = self.hook.traffic
        else:
            self.traffic = Traffic(self._bytes, time.perf_counter() - self._ready)

    def _more(self) -> tuple[float, ...]:
        """Return the numbers for monitors and policies."""
        mass = float(self._held) if self._sums else self._share
        if self.squares is not None:
            self.squares.scale = 1.0 / mass if mass > 0.0 else 0.0
        return (float(mass > 0.0), 0.0, *self._clock, self.fingerprint)

    def _meet(self) -> None:
        """Take the mean of the gradients that exist on any rank, as DDP does for those on all."""
        learnable = [p for p in self.carrier.parameters() if p.requires_grad]
        if self.squares is not None:
            tail, size = self.carrier.tail, self.part.size
            square = grad_norm([p for p in learnable if p is not tail]) ** 2 / size**2
            assert tail.grad is not None
            tail.grad[_SQUARE] = square * self.squares.scale * size
        present = torch.tensor([float(p.grad is not None) for p in learnable])
        self.processes.allreduce([present]).wait()
        if self.hook is not None and self.hook.meets:
            for parameter, ranks in zip(learnable, present.tolist(), strict=True):
                if ranks and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self.hook.meet(pieces_of(self.carrier.named_parameters()))
            return
        for parameter, ranks in zip(learnable, present.tolist(), strict=True):
            if ranks:
                self.add_gradients(parameter)
                assert parameter.grad is not None
                parameter.grad /= self.part.size

    def agree(self, losses: list[torch.Tensor], parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        agreed = self.carrier.tail.grad
        assert agreed is not None
        numbers = agreed.tolist()
        total, share, pause = numbers[:_FEW]
        if self._talks:
            self._hear(numbers, share)
        self.paused = self.paused or pause > 0
        if share > 0 and abs(share - 1.0) > 1e-6:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= share
            total /= share
        return torch.tensor(total)

    def _hear(self, numbers: list[float], share: float) -> None:
        """Take in what all ranks have said beside the loss."""
        _, _, _, number, square, seconds, waited, fingerprint = numbers
        self._clocks = (seconds, waited)
        self.check_fingerprint(fingerprint)
        if self.squares is not None:
            square = self.squares.collect(square)
            mass = 1.0 if self._sums else share
            self.parts = Parts(round(number), square / mass if mass > 0.0 else 0.0)


@contextmanager
def _standing_in(net: Any, module: nn.Module) -> Iterator[None]:
    """Let the estimator's own ``infer`` call the wrapped module."""
    bare = net.module_
    vars(net)["module_"] = module
    try:
        yield
    finally:
        vars(net)["module_"] = bare
