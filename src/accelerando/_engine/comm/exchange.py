"""Compressed exchange: tensors are encoded, sent to other ranks, decoded and summed.

Large matrices are encoded. Small tensors (biases, norms, the tail of
:mod:`accelerando._engine.comm.ddp`) travel as they are, in one payload per dtype.

*All to all*: every rank decodes the messages of all ranks, its own included, in their order. *In
two phases*: it does so for its shard only (:mod:`accelerando._engine.comm.shards`), encodes the sum
again and sends it to all. Either way all ranks decode the same bytes, and agree bit for bit.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import torch

from accelerando._decisions import Signals
from accelerando._engine.comm.communicator import Traffic
from accelerando._engine.comm.feedback_memory import FeedbackMemory, Memory
from accelerando._engine.comm.message import (
    header_bytes,
    headers_of,
    join,
    number_of,
    payloads_of,
    with_headers,
)
from accelerando._engine.comm.shards import SMALL, Piece, divide, in_two_phases
from accelerando._warmup import in_warmup
from accelerando.compress import QSGD, Adaptive, Codec, ErrorFeedback, decode
from accelerando.compress._payload import DTYPES, seal, working_dtype

_SLACK = 16  # a sixteenth more room than a message had, if its length varies
_WHOLE_KIND = 0
_SECOND = "+"  # draws of the second phase
_END = object()

_Key = tuple[int, int]  # the number of a message, and its phase
_Table = list[list[int]]  # bytes from each rank to each rank
Turns = Generator[None, None, None]
"""What one message has to do between waiting for others."""


class Arrival(Protocol):
    """Messages on their way."""

    def wait(self) -> Sequence[torch.Tensor]:
        """Return one buffer of each rank, in their order."""


Send = Callable[[Sequence[torch.Tensor], Sequence[int]], Arrival]
"""Sends a buffer to each rank; the second argument are the lengths of those that come."""


def is_small(parameter: torch.Tensor) -> bool:
    """Return True for what travels as it is: vectors, small matrices, dtypes of no codec."""
    return parameter.dim() < 2 or parameter.numel() < SMALL or parameter.dtype not in DTYPES


def pieces_of(named: Iterable[tuple[str, torch.Tensor]]) -> list[Piece]:
    """Return the gradients that exist; sparse ones become dense."""
    found = []
    for name, parameter in named:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        found.append(Piece(name, parameter.grad, is_small(parameter)))
    return found


@dataclass
class Exchange:
    """Sends and receives the gradients of one update, in one message or in several.

    Attributes
    ----------
    compressor : Codec, ErrorFeedback or Adaptive
        How gradients are encoded.
    rank, size : int
        This rank, and the number of ranks.
    transport : callable
        Sends a buffer to each rank and receives theirs.
    memory : dict
        Of error feedback.
    """

    compressor: Codec | ErrorFeedback | Adaptive
    rank: int
    size: int
    transport: Send
    memory: InitVar[Memory]
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self, memory: Memory) -> None:
        self.feedback = FeedbackMemory(memory)
        self._generator = torch.Generator()
        self._lengths: dict[_Key, _Table] = {}  # of the messages of all ranks, the last time
        self._room: dict[_Key, _Table] = {}  # bytes of their first buffers
        given = self.compressor
        self._codec = given.codec if isinstance(given, Adaptive) else given
        self._seed = (0, 0)
        self._whole = False
        self._clear()

    def begin(self, values: Mapping[str, float], seed: int) -> None:
        """Prepare an update.

        Random draws depend on the seed, the update, the rank and the name of the parameter.

        Parameters
        ----------
        values : mapping
            The signals before the update, from which :class:`~accelerando.compress.Adaptive`
            chooses the codec.
        seed : int
            Of the run.
        """
        if isinstance(self.compressor, Adaptive):
            self._codec = self.compressor.at(Signals.known(**values))
        self._seed = (seed, int(values["update"]))
        codec = self._codec.codec if isinstance(self._codec, ErrorFeedback) else self._codec
        warmup = codec.warmup_epochs if isinstance(codec, QSGD) else 0
        self._whole = warmup > 0 and in_warmup(values, warmup)
        self._clear()

    def _clear(self) -> None:
        self._open: list[Turns] = []  # one for each message
        self.feedback.begin()
        self._bytes, self._encoding, self._decoding, self._waiting = 0, 0.0, 0.0, 0.0

    # -- messages ---------------------------------------------------------------------------------

    def send(self, pieces: Sequence[Piece]) -> None:
        """Encode a message and send it; do not wait for anything."""
        two = in_two_phases(pieces, self.size)
        turns = (self._two_phases if two else self._all_to_all)(len(self._open), pieces)
        next(turns)
        self._open.append(turns)

    def receive(self) -> None:
        """Wait for all messages of the update, and replace the gradients by their sums.

        Messages take turns: each sends what is due, and the next one has its turn before anybody
        waits for it. So all ranks send in the same order.
        """
        turns, self._open = self._open, []
        while turns:
            turns = [one for one in turns if next(one, _END) is not _END]
        self.settle()

    def _all_to_all(self, number: int, pieces: Sequence[Piece]) -> Turns:
        (content,) = self.encode([pieces])
        found = yield from self._swap((number, 0), [content] * self.size)
        self.add_up(pieces, found)

    def _two_phases(self, number: int, pieces: Sequence[Piece]) -> Turns:
        shards = divide(pieces, self.size)
        found = yield from self._swap((number, 1), self.encode(shards, self.rank))
        self.add_up(shards[self.rank], found)
        content = self.encode_sum(shards[self.rank])
        found = yield from self._swap((number, 2), [content] * self.size)
        for shard, one in zip(shards, found, strict=True):
            self.add_up(shard, [one])

    def _swap(self, key: _Key, contents: Sequence[bytes]) -> Generator[None, None, list[bytes]]:
        """Send a content to each rank; return those of all ranks for this one.

        What does not fit into the first buffers is sent next: all ranks know from the headers that
        it must be.
        """
        start = header_bytes(self.size)
        messages = with_headers(number_of(self._codec), contents)
        room = self._room.setdefault(key, [[start] * self.size] * self.size)
        mine = list(zip(messages, room[self.rank], strict=True))
        arrival = self._launch([message[:some] for message, some in mine], room)
        yield None
        first = self._wait(arrival)
        lengths = [list(header.lengths) for header in headers_of(first)]
        pairs = [list(zip(a, b, strict=True)) for a, b in zip(lengths, room, strict=True)]
        missing = [[max(0, length - some) for length, some in of_rank] for of_rank in pairs]
        rest = None
        if any(map(any, missing)):
            rest = self._launch([message[some:] for message, some in mine], missing)
        self._make_room(key, lengths)
        yield None
        more = [b""] * self.size if rest is None else self._wait(rest)
        parts = zip(first, more, lengths, strict=True)
        return [(a + b)[start : row[self.rank]] for a, b, row in parts]

    def _launch(self, contents: Sequence[bytes], lengths: _Table) -> Arrival:
        buffers = []
        for content, length in zip(contents, lengths[self.rank], strict=True):
            buffer = torch.zeros(length, dtype=torch.uint8)
            if content:
                buffer[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            buffers.append(buffer)
        self._bytes += _sent_to_others(lengths)
        return self.transport(buffers, [row[self.rank] for row in lengths])

    def _wait(self, arrival: Arrival) -> list[bytes]:
        started = time.perf_counter()
        found = [bytes(buffer.cpu().numpy()) for buffer in arrival.wait()]
        self._waiting += time.perf_counter() - started
        return found

    def _make_room(self, key: _Key, lengths: _Table) -> None:
        """Give each of the next messages as much room as this one needed.

        All ranks saw the same lengths. A rank that expects another one would block forever.
        """
        before = self._lengths.get(key, lengths)
        self._lengths[key] = lengths
        self._room[key] = [
            [n if n == m else n + n // _SLACK for n, m in zip(now, then, strict=True)]
            for now, then in zip(lengths, before, strict=True)
        ]

    # -- contents ---------------------------------------------------------------------------------

    @property
    def joint(self) -> bool:
        """Whether the codec of the update divides its bytes among all gradients of a message."""
        return isinstance(self._codec, Codec) and self._codec.joint

    def encode(self, shards: Sequence[Sequence[Piece]], owner: int | None = None) -> list[bytes]:
        """Encode this rank's share of some pieces; return one content for each shard.

        `owner` is the number of the shard that this rank adds up, if ranks do so in two phases.
        """
        started = time.perf_counter()
        pieces = [piece for shard in shards for piece in shard if not self._travels_whole(piece)]
        shares = [piece.gradient / self.size for piece in pieces]
        codec = self._codec
        if isinstance(codec, ErrorFeedback):
            self.feedback.hand_back(pieces, [] if owner is None else shards[owner])
            found = [
                self.feedback.encode(codec, piece, share, self._seeded(piece.place))
                for piece, share in zip(pieces, shares, strict=True)
            ]
        else:
            found = self._encoded(codec, pieces, shares)
        payloads = iter(found)
        contents = []
        for shard in shards:
            encoded = [next(payloads) for one in shard if not self._travels_whole(one)]
            contents.append(join([*encoded, *map(_sealed, self._flat(shard, self.size))]))
        self._encoding += time.perf_counter() - started
        return contents

    def encode_sum(self, shard: Sequence[Piece]) -> bytes:
        """Encode the sums of this rank's shard, which every other rank will take over."""
        started = time.perf_counter()
        pieces = [piece for piece in shard if not self._travels_whole(piece)]
        codec = self._codec
        if isinstance(codec, ErrorFeedback):
            found = [
                self.feedback.encode_sum(codec, piece, self._seeded(piece.place + _SECOND))
                for piece in pieces
            ]
        else:
            found = self._encoded(codec, pieces, [one.gradient for one in pieces], _SECOND)
        content = join([*found, *map(_sealed, self._flat(shard, 1))])
        self._encoding += time.perf_counter() - started
        return content

    def _encoded(
        self,
        codec: Codec,
        pieces: Sequence[Piece],
        tensors: Sequence[torch.Tensor],
        phase: str = "",
    ) -> list[bytes]:
        if codec.joint:
            names = "".join(one.place for one in pieces) + phase
            return codec.encode_all(tensors, self._seeded(names))
        pairs = zip(pieces, tensors, strict=True)
        return [codec.encode(one, self._seeded(piece.place + phase)) for piece, one in pairs]

    def _seeded(self, name: str) -> torch.Generator:
        # The hash of a tuple of integers is the same in every process.
        mixed = hash((*self._seed, self.rank, zlib.crc32(name.encode())))
        return self._generator.manual_seed(mixed % 2**63)

    def add_up(self, pieces: Sequence[Piece], contents: Sequence[bytes]) -> None:
        """Replace gradients by the sums of what some ranks have sent of them."""
        started = time.perf_counter()
        encoded = [piece for piece in pieces if not self._travels_whole(piece)]
        payloads = [payloads_of(content) for content in contents]
        for number, piece in enumerate(encoded):
            shape = tuple(piece.gradient.shape)
            found = (self._codec.decode(of_rank[number], shape) for of_rank in payloads)
            piece.gradient.copy_(_sum(found, piece.gradient.dtype))
        for number, flat in enumerate(self._flat(pieces, 1), start=len(encoded)):
            found = (decode(of_rank[number], (flat.numel(),)) for of_rank in payloads)
            total = _sum(found, flat.dtype)
            at = 0
            for piece in pieces:
                if self._travels_whole(piece) and piece.gradient.dtype == flat.dtype:
                    part = total[at : at + piece.gradient.numel()]
                    piece.gradient.copy_(part.view(piece.gradient.shape))
                    at += piece.gradient.numel()
        self._decoding += time.perf_counter() - started

    def _travels_whole(self, piece: Piece) -> bool:
        """Return True for what is not compressed; during a warm-up, nothing is."""
        return piece.whole or self._whole

    def _flat(self, pieces: Sequence[Piece], divisor: int) -> list[torch.Tensor]:
        """Concatenate what travels as it is to one vector of each dtype."""
        whole = [piece.gradient for piece in pieces if self._travels_whole(piece)]
        dtypes = list(dict.fromkeys(gradient.dtype for gradient in whole))
        return [
            torch.cat([g.detach().cpu().reshape(-1) for g in whole if g.dtype == dtype]) / divisor
            for dtype in dtypes
        ]

    # -- the end of an update ---------------------------------------------------------------------

    def settle(self) -> None:
        """Keep what was left out, now that everything has arrived."""
        self.feedback.keep()
        self.traffic = Traffic(self._bytes, self._waiting, self._encoding, self._decoding)

    def forget(self, names: Sequence[str]) -> None:
        """Remember what was remembered before the update of parameters that nobody has used."""
        self.feedback.forget(names)

    def count(self, lengths: _Table) -> None:
        """Count messages that ranks of these contents' lengths would have sent each other."""
        header = header_bytes(self.size)
        self._bytes += _sent_to_others([[header + n for n in row] for row in lengths])


def exchange_here(exchanges: Sequence[Exchange], pieces: Sequence[Sequence[Piece]]) -> None:
    """Do in one process what several ranks would do: one exchange and its pieces for each.

    The first pieces are replaced by the sums over all; the first exchange has the traffic of all.
    """
    first, size = exchanges[0], len(exchanges)
    if in_two_phases(pieces[0], size):
        shards = [divide(some, size) for some in pieces]
        contents = [one.encode(shards[k], k) for k, one in enumerate(exchanges)]
        first.count([[len(content) for content in row] for row in contents])
        sums = []
        for k, one in enumerate(exchanges):
            one.add_up(shards[k][k], [row[k] for row in contents])
            sums.append(one.encode_sum(shards[k][k]))
        first.count([[len(content)] * size for content in sums])
        for shard, content in zip(shards[0], sums, strict=True):
            first.add_up(shard, [content])
    else:
        found = [one.encode([some])[0] for one, some in zip(exchanges, pieces, strict=True)]
        first.count([[len(content)] * size for content in found])
        first.add_up(pieces[0], found)
    for one in exchanges:
        one.settle()


def _sent_to_others(lengths: _Table) -> int:
    return sum(n for a, row in enumerate(lengths) for b, n in enumerate(row) if a != b)


def _sealed(flat: torch.Tensor) -> bytes:
    content = bytes(flat.view(torch.uint8).numpy())
    return seal(_WHOLE_KIND, flat.dtype, flat.numel(), content, raw=True)


def _sum(tensors: Iterable[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    total: torch.Tensor | None = None
    for tensor in tensors:
        wide = tensor.to(working_dtype(dtype))
        total = wide if total is None else total.add_(wide)
    assert total is not None
    return total
