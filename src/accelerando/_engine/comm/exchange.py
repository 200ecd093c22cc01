"""Compressed exchange: gradients are encoded, gathered from all ranks, decoded and summed.

A *message* is what one rank sends at once: a header of fixed size, the lengths of its payloads, the
payloads. Large matrices are encoded. Small tensors (biases, norms, the tail of
:mod:`accelerando._engine.comm.ddp`) travel as they are, in one payload per dtype. All ranks decode
all messages in the order of the ranks, their own included, so that they agree bit for bit.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from accelerando._decisions import Signals
from accelerando._engine.comm.communicator import Traffic
from accelerando._warmup import in_warmup
from accelerando.compress import QSGD, Adaptive, Codec, ErrorFeedback, decode
from accelerando.compress._payload import DTYPES, seal, working_dtype
from accelerando.exceptions import PayloadError, UnsupportedError

SMALL = 1024  # entries; encoding fewer takes longer than sending them
_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"ACLM"
_SLACK = 16  # a sixteenth more room than the longest message had, if lengths vary
_WHOLE_KIND = 0

Memory = dict[str, torch.Tensor | None]
"""What error feedback has not sent yet, by the parameter's name."""


class Piece(NamedTuple):
    """A gradient, which is replaced by the sum over the ranks."""

    name: str
    gradient: torch.Tensor
    whole: bool  # not to be compressed


class Arrival(Protocol):
    """Messages on their way."""

    def wait(self) -> Sequence[torch.Tensor]:
        """Return one buffer of each rank, in their order."""


Gather = Callable[[torch.Tensor], Arrival]


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
    gather : callable
        Sends a buffer to all ranks and receives theirs, all of the same length.
    memory : dict
        Of error feedback. In units of the gradient of the global batch, so that it stays right
        when the number of ranks changes.
    """

    compressor: Codec | ErrorFeedback | Adaptive
    rank: int
    size: int
    gather: Gather
    memory: Memory
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        self._generator = torch.Generator()
        self._room: dict[int, int] = {}  # bytes of the first buffer of each message
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
        self._sent: list[tuple[int, list[Piece], bytes, Arrival]] = []
        self._left: Memory = {}
        self._before: Memory = {}
        self._bytes, self._encoding, self._decoding, self._waiting = 0, 0.0, 0.0, 0.0

    # -- sending ----------------------------------------------------------------------------------

    def send(self, pieces: Sequence[Piece]) -> None:
        """Encode a message and send it; do not wait for anything."""
        started = time.perf_counter()
        pieces = self._as_sent(pieces)
        message = self._message(pieces)
        number = len(self._sent)
        room = self._room.setdefault(number, _HEADER.size)
        self._encoding += time.perf_counter() - started
        self._sent.append((number, list(pieces), message, self._launch(message[:room], room)))

    def _as_sent(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces of this update, none of which is compressed during a warm-up."""
        return [piece._replace(whole=True) for piece in pieces] if self._whole else pieces

    def _launch(self, content: bytes, length: int) -> Arrival:
        buffer = torch.zeros(length, dtype=torch.uint8)
        if content:
            buffer[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._bytes += (self.size - 1) * self.size * length
        return self.gather(buffer)

    def _message(self, pieces: Sequence[Piece]) -> bytes:
        payloads = self._encoded([piece for piece in pieces if not piece.whole])
        payloads += [
            seal(_WHOLE_KIND, flat.dtype, flat.numel(), _as_bytes(flat), raw=True)
            for flat in _flat(pieces, self.size)
        ]
        lengths = struct.pack(f"<{len(payloads)}Q", *map(len, payloads))
        total = _HEADER.size + len(lengths) + sum(map(len, payloads))
        return b"".join([_HEADER.pack(_MAGIC, len(payloads), total), lengths, *payloads])

    @property
    def joint(self) -> bool:
        """Whether the codec of the update divides its bytes among all gradients of a message."""
        return isinstance(self._codec, Codec) and self._codec.joint

    def _encoded(self, pieces: Sequence[Piece]) -> list[bytes]:
        codec = self._codec
        if isinstance(codec, ErrorFeedback):
            return [self._with_memory(codec, piece) for piece in pieces]
        gradients = [piece.gradient / self.size for piece in pieces]
        if self.joint:
            return codec.encode_all(gradients, self._seeded("".join(one.name for one in pieces)))
        pairs = zip(pieces, gradients, strict=True)
        return [codec.encode(one, self._seeded(piece.name)) for piece, one in pairs]

    def _seeded(self, name: str) -> torch.Generator:
        # The hash of a tuple of integers is the same in every process.
        mixed = hash((*self._seed, self.rank, zlib.crc32(name.encode())))
        return self._generator.manual_seed(mixed % 2**63)

    def _with_memory(self, codec: ErrorFeedback, piece: Piece) -> bytes:
        if piece.name in self._left:  # a rule of Adaptive chose it; others were refused before
            raise UnsupportedError(
                f"{codec!r} was chosen for an update in which the optimizer evaluates "
                "gradients several times. Let the rule choose a codec without memory, or use "
                "another optimizer."
            )
        gradient, remembered = piece.gradient / self.size, self.memory.get(piece.name)
        payload, left = codec.encode_with(gradient, remembered, self._seeded(piece.name))
        self._left[piece.name] = left
        return payload

    # -- receiving --------------------------------------------------------------------------------

    def receive(self) -> None:
        """Wait for all messages of the update, and replace the gradients by their sums.

        What did not fit into the first buffers is sent now, in the order of the messages: all
        ranks know from the headers that it must be.
        """
        rests = []
        for number, pieces, message, arrival in self._sent:
            first = self._wait(arrival)
            lengths = [_length(content) for content in first]
            room = self._room[number]
            missing = max(lengths) - room
            rest = self._launch(message[room:], missing) if missing > 0 else None
            self._make_room(number, lengths)
            rests.append((pieces, first, lengths, rest))
        for pieces, first, lengths, rest in rests:
            more = [b""] * self.size if rest is None else self._wait(rest)
            started = time.perf_counter()
            whole = [(a + b)[:n] for a, b, n in zip(first, more, lengths, strict=True)]
            self._add_up(pieces, whole)
            self._decoding += time.perf_counter() - started
        self._settle()

    def _settle(self) -> None:
        """Keep what was left out, now that everything has arrived.

        An update that fails before is repeated with the memory that it had.
        """
        self._before = {name: self.memory.get(name) for name in self._left}
        self.memory.update(self._left)
        self._sent = []
        self.traffic = Traffic(self._bytes, self._waiting, self._encoding, self._decoding)

    def forget(self, names: Sequence[str]) -> None:
        """Remember what was remembered before the update of parameters that nobody has used."""
        for name in names:
            if name in self._before:
                self.memory[name] = self._before[name]

    def _wait(self, arrival: Arrival) -> list[bytes]:
        started = time.perf_counter()
        found = [bytes(buffer.cpu().numpy()) for buffer in arrival.wait()]
        self._waiting += time.perf_counter() - started
        return found

    def _make_room(self, number: int, lengths: Sequence[int]) -> None:
        """Give the next message as much room as the longest of these needed.

        All ranks saw the same lengths. A rank with another size would block the gather forever.
        """
        longest, room = max(lengths), self._room[number]
        steady = min(lengths) == longest and room in (longest, _HEADER.size)
        self._room[number] = longest if steady else longest + longest // _SLACK

    def _add_up(self, pieces: Sequence[Piece], messages: Sequence[bytes]) -> None:
        encoded = [piece for piece in pieces if not piece.whole]
        payloads = [_payloads(message) for message in messages]
        for number, piece in enumerate(encoded):
            shape = tuple(piece.gradient.shape)
            found = (self._codec.decode(of_rank[number], shape) for of_rank in payloads)
            piece.gradient.copy_(_sum(found, piece.gradient.dtype))
        for number, flat in enumerate(_flat(pieces, self.size), start=len(encoded)):
            found = (decode(of_rank[number], (flat.numel(),)) for of_rank in payloads)
            total = _sum(found, flat.dtype)
            at = 0
            for piece in pieces:
                if piece.whole and piece.gradient.dtype == flat.dtype:
                    part = total[at : at + piece.gradient.numel()]
                    piece.gradient.copy_(part.view(piece.gradient.shape))
                    at += piece.gradient.numel()


def exchange_here(exchanges: Sequence[Exchange], pieces: Sequence[Sequence[Piece]]) -> None:
    """Do in one process what several ranks would do: one exchange and its pieces for each.

    The first pieces are replaced by the sums over all; the first exchange has the traffic of all.
    """
    first, started = exchanges[0], time.perf_counter()
    pieces = [one._as_sent(some) for one, some in zip(exchanges, pieces, strict=True)]
    messages = [one._message(some) for one, some in zip(exchanges, pieces, strict=True)]
    encoded = time.perf_counter()
    first._add_up(pieces[0], messages)
    first._bytes = (len(exchanges) - 1) * sum(map(len, messages))
    # On ranks, each encodes its own message, at the same time as the others.
    first._encoding = (encoded - started) / len(exchanges)
    first._decoding = time.perf_counter() - encoded
    for one in exchanges:
        one._settle()


def _flat(pieces: Sequence[Piece], size: int) -> list[torch.Tensor]:
    """Concatenate what travels as it is to one vector of each dtype."""
    whole = [piece.gradient for piece in pieces if piece.whole]
    dtypes = list(dict.fromkeys(gradient.dtype for gradient in whole))
    return [
        torch.cat([g.detach().cpu().reshape(-1) for g in whole if g.dtype == dtype]) / size
        for dtype in dtypes
    ]


def _sum(tensors: Iterable[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    total: torch.Tensor | None = None
    for tensor in tensors:
        wide = tensor.to(working_dtype(dtype))
        total = wide if total is None else total.add_(wide)
    assert total is not None
    return total


def _as_bytes(flat: torch.Tensor) -> bytes:
    return bytes(flat.view(torch.uint8).numpy())


def _length(message: bytes) -> int:
    magic, _, total = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise PayloadError(f"A rank's message begins with {magic!r}; it is damaged.")
    return int(total)


def _payloads(message: bytes) -> list[memoryview]:
    _, count, _ = _HEADER.unpack_from(message)
    lengths = struct.unpack_from(f"<{count}Q", message, _HEADER.size)
    view, at = memoryview(message), _HEADER.size + 8 * count
    found = []
    for length in lengths:
        found.append(view[at : at + length])
        at += length
    return found
