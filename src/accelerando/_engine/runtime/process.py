"""The process that does the work: its memory allocator, its random generators, and Ctrl-C.

They belong to the process and not to one fit, so their use is counted and locked here.

Every update frees large tensors and allocates them again. Above its thresholds glibc's allocator
returns such memory to the kernel each time, and the next update pays with page faults: up to half
of the time of a convolutional net. :func:`keep_memory` raises the thresholds during a fit.
Afterwards it sets them to the values that glibc's own adaptation would have reached after freeing
one large block, and returns the memory to the kernel.

To leave the allocator alone, set the environment variable ``ACCELERANDO_KEEP_MEMORY=0``, or set
:data:`KEEP_MEMORY` to False.
"""

from __future__ import annotations

import ctypes
import os
import platform
import random
import signal
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from accelerando._engine.state import TrainState

KEEP_MEMORY = True  # the default of ACCELERANDO_KEEP_MEMORY

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt's parameter numbers
_WHILE_TRAINING = 1 << 30
_AFTERWARDS = 32 << 20
_WORTH_TRIMMING = 1.0  # seconds; a search makes thousands of short fits, each reusing the memory

_lock = threading.Lock()
_users = 0
_limited = False


@cache
def _glibc() -> Any | None:
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None


def _enabled() -> bool:
    return KEEP_MEMORY and os.environ.get("ACCELERANDO_KEEP_MEMORY", "1").strip() != "0"


@contextmanager
def keep_memory(*, one_arena: bool = False) -> Iterator[None]:
    """Keep freed memory in the process inside the context; without glibc, do nothing.

    The setting belongs to the process, so nested and concurrent uses are counted.

    Parameters
    ----------
    one_arena : bool
        Let threads that are started inside allocate from the main thread's arena. Training in a
        thread with a separate arena is a tenth slower.

    Examples
    --------
    >>> import torch
    >>> with keep_memory():
    ...     x = torch.zeros(1000).sum()
    """
    glibc = _glibc() if _enabled() else None
    if glibc is None:
        yield
        return
    _raise_thresholds(glibc, one_arena)
    started = time.monotonic()
    try:
        yield
    finally:
        _lower_thresholds(glibc, started)


def _raise_thresholds(glibc: Any, one_arena: bool) -> None:
    global _users, _limited  # noqa: PLW0603  the settings that they count are global, too
    with _lock:
        _users += 1
        if _users == 1:
            glibc.mallopt(_TRIM_THRESHOLD, _WHILE_TRAINING)
            if not glibc.mallopt(_MMAP_THRESHOLD, _WHILE_TRAINING):  # above the limit of this build
                glibc.mallopt(_MMAP_THRESHOLD, _AFTERWARDS)
        if one_arena and not _limited:
            _limited = True
            glibc.mallopt(_ARENA_MAX, 1)


def _lower_thresholds(glibc: Any, started: float) -> None:
    global _users, _limited  # noqa: PLW0603
    with _lock:
        _users -= 1
        if _users > 0:
            return
        glibc.mallopt(_TRIM_THRESHOLD, 2 * _AFTERWARDS)
        glibc.mallopt(_MMAP_THRESHOLD, _AFTERWARDS)
        if _limited:
            _limited = False
            glibc.mallopt(_ARENA_MAX, 0)  # no limit
        if time.monotonic() - started > _WORTH_TRIMMING:
            glibc.malloc_trim(0)


# -- random generators ----------------------------------------------------------------------------

# PyTorch's generators belong to the process. Two fits in two threads must not seed them while one
# of them draws its first parameters.
RNG_LOCK = threading.RLock()


def get_rng() -> list[torch.Tensor]:
    """Return the states of PyTorch's generators: the CPU's, then each GPU's."""
    import torch  # not above: a search handles Ctrl-C here, too, and may not need torch

    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *gpus]


def set_rng(states: list[torch.Tensor]) -> None:
    """Set PyTorch's generators; states of GPUs that this machine does not have are left out."""
    import torch

    torch.set_rng_state(states[0])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states[1:], strict=False):
            torch.cuda.set_rng_state(state, device)


def seed_torch(seed: int) -> None:
    """Seed PyTorch's generators, as ``torch.manual_seed`` does.

    Where there is no accelerator ``torch.manual_seed`` remembers the seed for each kind of one,
    with the lines of code of all callers. That takes hundreds of times as long as the seed itself.
    """
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class Draws:
    """Random numbers that depend on a few numbers only: the same on any rank, and in this process.

    Data sets draw from the global generators of PyTorch, NumPy and Python. Inside of ``with
    draws():`` these are seeded by the numbers; a second block continues where the first ended.
    Afterwards they are as before: dropout draws from them, too.

    Examples
    --------
    >>> with Draws(1, 2)():
    ...     first = random.random()
    >>> with Draws(1, 2)():
    ...     print(random.random() == first)
    True
    """

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self._state: tuple[Any, ...] | None = None
        self._before: tuple[Any, ...] = ()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._before = _generator_states()
        if self._state is None:
            seed_generators(*self.numbers)
        else:
            _set_generator_states(self._state)
        try:
            yield
        finally:
            self._state = _generator_states()
            _set_generator_states(self._before)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Draw as outside of the block, in a part of it."""
        inside = _generator_states()
        _set_generator_states(self._before)
        try:
            yield
        finally:
            self._before = _generator_states()
            _set_generator_states(inside)

    def during(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of an iterator that draws random numbers."""
        while True:
            with self():
                item = next(items, _END)
            if item is _END:
                return
            yield item


_END = object()
_LOOK_EVERY = 100  # updates


def seed_generators(*numbers: int) -> None:
    """Seed the global generators of PyTorch, NumPy and Python."""
    import torch

    mixed = zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers))
    torch.default_generator.manual_seed(mixed)
    np.random.seed(mixed)
    random.seed(mixed)


class UpdateSeeds:
    """Seed the global generators before each update, so that dropout depends on a number only.

    Seeding Python's and NumPy's generators takes a twentieth of a small update, and few modules
    draw from them. They are seeded if the update before has drawn from them, which is looked at
    now and then.

    Examples
    --------
    >>> seed, found = UpdateSeeds(), []
    >>> for _ in range(3):
    ...     seed(7)
    ...     found.append(np.random.random())
    >>> found[0] == found[1] == found[2]
    True
    """

    def __init__(self) -> None:
        self._updates = 0
        self._drawn = True  # whether updates draw from generators other than PyTorch's
        self._seeded: tuple[Any, ...] | None = None

    def __call__(self, number: int) -> None:
        """Seed for the update that follows."""
        import torch

        torch.default_generator.manual_seed(number)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(number)
        if self._seeded is not None:
            self._drawn, self._seeded = self._seeded != _positions(), None
        looks = self._updates % _LOOK_EVERY == 0
        self._updates += 1
        if self._drawn or looks:
            np.random.seed(number % 2**32)
            random.seed(number)
        if looks:
            self._seeded = _positions()


def _positions() -> tuple[Any, ...]:
    """Return what changes when somebody draws from NumPy's or Python's generator."""
    _, key, *place = np.random.get_state(legacy=True)
    return np.asarray(key).tobytes(), *place, random.getstate()


@contextmanager
def update_generators(state: TrainState) -> Iterator[None]:
    """Let updates of a seeded run seed the generators inside; put them back afterwards.

    Callbacks between epochs then draw the same numbers here and where ranks make the updates.
    """
    if not state.seeded:
        yield
        return
    others = _generator_states()[1:]
    kept = state.rng = get_rng()
    try:
        yield
    finally:
        set_rng(kept)
        _set_generator_states((kept[0], *others))
        state.rng = None


def _generator_states() -> tuple[Any, ...]:
    import torch

    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def _set_generator_states(states: tuple[Any, ...]) -> None:
    import torch

    torch.default_generator.set_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


# -- Ctrl-C ---------------------------------------------------------------------------------------


class Interrupt:
    """Remember the first Ctrl-C until somebody asks; raise the second one at once.

    An interrupt inside ``optimizer.step`` would leave half of the parameters moved, from which no
    later run could continue. The handler is installed in the main thread only, because Python
    allows it nowhere else, and only over Python's own handler, so that a notebook's or a server's
    handler stays in place.

    Attributes
    ----------
    pending : bool
        Whether Ctrl-C was pressed since the block began.

    Examples
    --------
    >>> with Interrupt() as interrupt:
    ...     interrupt.check()
    >>> interrupt.pending
    False
    """

    def __init__(self) -> None:
        self.pending = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            current = signal.getsignal(signal.SIGINT)
            if current is signal.default_int_handler:
                self._previous = current
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def check(self) -> None:
        """Raise the interrupt that is pending."""
        if self.pending:
            raise KeyboardInterrupt
