"""Private names of PyTorch, each wrapped in a small typed function.

This is the only module of the engine that uses them, so a new release of PyTorch can break this
module only. ``tests/_engine/test_torch.py`` has one test per function.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _unflatten_dense_tensors
from torch.utils._python_dispatch import TorchDispatchMode

Tensors: TypeAlias = list[torch.Tensor]


def foreach_add_(tensors: Tensors, others: Tensors, *, alpha: float = 1.0) -> None:
    """Add ``alpha · others`` to `tensors` in place, in one call for all of them."""
    torch._foreach_add_(tensors, others, alpha=alpha)


def foreach_sub(tensors: Tensors, others: Tensors) -> Tensors:
    """Return the differences ``tensors − others``."""
    return list(torch._foreach_sub(tensors, others))


def foreach_sub_(tensors: Tensors, others: Tensors) -> None:
    """Subtract `others` from `tensors` in place."""
    torch._foreach_sub_(tensors, others)


def foreach_mul_(tensors: Tensors, factor: float) -> None:
    """Multiply `tensors` by a number in place."""
    torch._foreach_mul_(tensors, factor)


def foreach_div_(tensors: Tensors, divisor: float) -> None:
    """Divide `tensors` by a number in place."""
    torch._foreach_div_(tensors, divisor)


def foreach_copy_(tensors: Tensors, others: Tensors) -> None:
    """Copy the values of `others` to `tensors`."""
    torch._foreach_copy_(tensors, others)


def foreach_lerp_(tensors: Tensors, others: Tensors, weight: float) -> None:
    """Move `tensors` towards `others` by a share of their distance, in place."""
    torch._foreach_lerp_(tensors, others, weight)


def unflatten(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Tensors:
    """Return views of a one-dimensional tensor with the shapes of `like`, faster than ``split``."""
    return list(_unflatten_dense_tensors(flat, like))  # type: ignore[no-untyped-call]


def version_of(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes of a tensor, without those of ``tensor.data``."""
    return int(tensor._version)


def batch_norm_class() -> type[nn.Module]:
    """Return the base class of BatchNorm1d, BatchNorm2d, BatchNorm3d and SyncBatchNorm."""
    return nn.modules.batchnorm._BatchNorm


def check_batch_norm_input(layer: nn.Module, x: torch.Tensor) -> None:
    """Raise ``ValueError`` if `x` has a number of dimensions that the BatchNorm layer refuses."""
    layer._check_input_dim(x)  # type: ignore[operator]


def mark_optimizer_called(optimizer: torch.optim.Optimizer) -> None:
    """Make learning-rate schedulers assume that the optimizer has taken a step.

    On the driver of a cluster, optimizers receive states and never step. A scheduler that steps
    there would warn that it was called before ``optimizer.step``.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def track_steps(optimizer: torch.optim.Optimizer) -> None:
    """Make schedulers believe that they have wrapped ``optimizer.step`` and that it was called.

    A scheduler that was made for an optimizer and pickled with it warns otherwise.
    """
    mark_optimizer_called(optimizer)
    step: Any = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return

    @functools.wraps(step.__func__)
    def tracked(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    tracked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = tracked  # type: ignore[method-assign]


def hooks_of(tensor: torch.Tensor) -> list[Any]:
    """Return the functions that users registered to see or change the gradient of a tensor."""
    after: Any = getattr(tensor, "_post_accumulate_grad_hooks", None)
    found = [*(tensor._backward_hooks or {}).values(), *(after or {}).values()]
    return [hook for hook in found if not getattr(hook, "belongs_to_a_rank", False)]


def parametrize_like(base: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return an empty module of the class that ``torch.nn.utils.parametrize`` derives from `base`.

    PyTorch makes such a class for every parametrized module and refuses to pickle them.
    """
    module = base.__new__(base)
    nn.utils.parametrize._inject_new_class(module)
    for name in names:
        nn.utils.parametrize._inject_property(module, name)
    return module


_quieting = threading.Lock()
_quiet = [0, 0]  # stores that are being connected, and the level before


@contextmanager
def _only_errors() -> Iterator[None]:
    """Let PyTorch's C++ code log errors only.

    A connection to a machine whose address has no name prints a warning, and nothing can be done
    about it. The level has no setter; other builds of PyTorch may not have the variable.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        yield
        return
    with _quieting:
        if not _quiet[0]:
            _quiet[1], level.value = level.value, max(level.value, 2)
        _quiet[0] += 1
    try:
        yield
    finally:
        with _quieting:
            _quiet[0] -= 1
            if not _quiet[0]:
                level.value = _quiet[1]


def make_store(
    host: str, port: int, *, timeout: timedelta = timedelta(seconds=60), **options: Any
) -> dist.TCPStore:  # type: ignore[name-defined]
    """Return a ``TCPStore`` that does not wait for other processes."""
    kind: Any = dist.TCPStore  # type: ignore[attr-defined]
    with _only_errors():
        return kind(host, port, wait_for_workers=False, timeout=timeout, **options)


def make_process_group(
    store: Any,
    rank: int,
    size: int,
    *,
    backend: Literal["gloo", "nccl"],
    seconds: float,
    address: str,
    device: torch.device,
    ports: tuple[int, int] | None = None,
) -> dist.ProcessGroup:
    """Return a process group that PyTorch's global registry does not contain.

    Several such groups can exist in one process, and a group that failed is garbage like any other
    object. ``torch.distributed.init_process_group`` allows one per process.

    Parameters
    ----------
    store : torch.distributed.Store
        Where the ranks exchange their addresses; give each group another prefix.
    rank, size : int
        This rank, and the number of ranks.
    backend : "gloo" or "nccl"
        The same on all ranks.
    seconds : float
        Timeout of collective operations.
    address : str
        Host name or IP address on which gloo listens.
    device : torch.device
        Device of the tensors.
    ports : (int, int) or None
        The first and the last port on which gloo may listen. NCCL has no such setting.
    """
    options: Any
    implementation: Any
    if backend == "nccl":
        if ports is not None:
            raise ValueError(
                f"The ports {ports[0]}:{ports[1]} (accelerando.ports) cannot be honored on GPUs: "
                "NCCL has no setting for its ports. Remove accelerando.ports, and set the range "
                "of the system (net.ipv4.ip_local_port_range)."
            )
        kind = dist.ProcessGroup.BackendType.NCCL
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=seconds)
        implementation = dist.ProcessGroupNCCL(store, rank, size, options)
        implementation._set_sequence_number_for_group()
        implementation.eager_connect_single_device(device)
    else:
        kind = dist.ProcessGroup.BackendType.GLOO
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=seconds)
        # By default gloo listens on the address that the host name resolves to.
        options._devices = [_gloo_device(address, ports)]
        implementation = dist.ProcessGroupGloo(store, rank, size, options)
        implementation._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(device, kind, implementation)
    return group


_gloo_devices: dict[tuple[str, tuple[int, int]], Any] = {}  # it takes a while to find one
_GLOO_SECONDS = 60.0


def _gloo_device(address: str, ports: tuple[int, int] | None) -> Any:
    """Return a device of gloo, which listens on `address` and on one of `ports`.

    Gloo lets the system choose a port. So devices are made until one has a port of the range.
    """
    make: Any = dist.ProcessGroupGloo.create_device
    if ports is None:
        return make(hostname=address)
    if (address, ports) in _gloo_devices:
        return _gloo_devices[address, ports]
    deadline = time.monotonic() + _GLOO_SECONDS
    while time.monotonic() < deadline:
        before = _listening()
        device = make(hostname=address)
        new = set(_listening().items()) - set(before.items())
        if new and all(ports[0] <= port <= ports[1] for _, port in new):
            return _gloo_devices.setdefault((address, ports), device)
    raise ValueError(
        f"The system of {address} chose no port of {ports[0]}:{ports[1]} (accelerando.ports) for "
        f"gloo in {_GLOO_SECONDS:g} s. Name a wider range, in the lower half of its "
        "net.ipv4.ip_local_port_range (usually 32768 to 46883), or change that range."
    )


def _listening() -> dict[tuple[str, str], int]:
    """Return the ports on which this process listens, by descriptor and socket."""
    found = {}
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError as error:
        raise ValueError(
            "A range of ports (accelerando.ports) can be honored on Linux only: other systems do "
            "not tell which port gloo has got. Remove the setting."
        ) from error
    for number in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(number))) as copy:
                    if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found[number, name] = int(copy.getsockname()[1])
    return found


def after_backward(function: Callable[[], None]) -> None:
    """Call a function when the running backward pass has ended, in the order of these calls.

    DDP finishes its exchange in such a call, which it asks for when the last gradient is there.
    """
    torch.autograd.Variable._execution_engine.queue_callback(function)


def release_ddp(wrapped: Any) -> None:
    """Make a ``DistributedDataParallel`` release its process group now.

    DDP's hooks keep the wrapper in reference cycles. Until the garbage collector finds them, the
    connections stay open, and neighbors keep waiting for a rank that has left.
    """
    wrapped.reducer = wrapped.logger = wrapped.process_group = None


def is_ddp_complaint(error: RuntimeError) -> bool:
    """Return True if DDP refuses to begin a forward pass because of what the module did before.

    Its other errors before a forward pass are those of a message to the other ranks.
    """
    return str(error).startswith("Expected to have finished reduction in the prior iteration")


def is_reentrant(loss: torch.Tensor) -> bool:
    """Return True if the backward pass contains another one (``use_reentrant=True``)."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False


def pack(content: dict[str, Any]) -> bytes:
    """Return a dictionary of tensors, texts and numbers as bytes, to be sent."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """Return what :func:`pack` was given, on the CPU; nothing in it is executed."""
    found: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return found


_starting = threading.Lock()


def start_workers(loader: Any) -> Any:
    """Return ``iter(loader)``, also in a process that must not have children.

    Dask's workers are daemonic, to which :mod:`multiprocessing` forbids children, because they
    would stay behind. Those of a ``DataLoader`` do not: they are daemons themselves, and look every
    five seconds whether their parent is still there.
    """
    if not loader.num_workers:
        return iter(loader)
    settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    with _starting:
        daemonic = settings.get("daemon")
        settings["daemon"] = False
        try:
            return iter(loader)
        finally:
            settings["daemon"] = daemonic


def end_workers(loader: Any, delivering: Any) -> None:
    """End the worker processes of a loader's iterator, and wait for them."""
    loader._iterator = None
    shut_down = getattr(delivering, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()


_FILLED = ("rand", "randn", "randint", "uniform", "normal", "random", "exponential", "geometric")


class ConstantRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, random numbers are constants: dropout keeps everything, permutations reverse.

    A batch and its parts then get the same numbers in every row, although they draw tensors of
    different sizes. Numbers of a generator of the module's own do depend on the rows of a part.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        found = func(*args, **(kwargs or {}))
        if (kwargs or {}).get("generator") is not None:
            return found
        if name.startswith("bernoulli"):
            found.fill_(1)
        elif name.startswith("randperm"):
            found.copy_(torch.arange(len(found) - 1, -1, -1))
        elif name.startswith(_FILLED) and isinstance(found, torch.Tensor):
            found.fill_(0.5 if found.is_floating_point() else 0)
        return found


def as_tensor(content: bytes) -> torch.Tensor:
    """Return bytes as a tensor, which :func:`pack` accepts."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def from_tensor(content: torch.Tensor) -> bytes:
    """Return the bytes that :func:`as_tensor` was given."""
    return bytes(content.numpy().tobytes())
