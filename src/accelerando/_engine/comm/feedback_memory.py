"""The memory of error feedback: what a rank has not sent yet, in both phases of an exchange.

In the first phase a rank encodes its own gradients; there is one tensor for each parameter. In the
second phase it encodes the sum of all ranks for the rows of its shard, and remembers what that
left out under a separate name. If these rows become those of another rank, because ranks have
joined or left, the rank adds what is left of them to its own gradients: the sum over the ranks then
contains it, whoever adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from accelerando._engine.comm.shards import Piece
from accelerando.compress import ErrorFeedback
from accelerando.exceptions import UnsupportedError

Memory = dict[str, torch.Tensor | None]
"""What error feedback has not sent yet, by the parameter's name, or by :func:`second_name`."""

_ROWS = " rows "


class FeedbackMemory:
    """What is remembered, and what an update would leave, which counts once it has arrived.

    Parameters
    ----------
    memory : dict
        In units of the gradient of the global batch, so that it stays right when the number of
        ranks changes.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.begin()

    def begin(self) -> None:
        """Begin an update; one that failed is repeated with the memory that it had."""
        self._left: Memory = {}
        self._before: Memory = {}
        self._encoded: set[str] = set()

    def encode(
        self, codec: ErrorFeedback, piece: Piece, tensor: torch.Tensor, generator: torch.Generator
    ) -> bytes:
        """Encode this rank's share of a piece in the first phase."""
        if piece.place in self._encoded:  # a rule of Adaptive chose it; others were refused before
            raise UnsupportedError(
                f"{codec!r} was chosen for an update in which the optimizer evaluates "
                "gradients several times. Let the rule choose a codec without memory, or use "
                "another optimizer."
            )
        self._encoded.add(piece.place)
        remembered, rows = self.memory.get(piece.name), piece.rows
        if rows is None:
            payload, self._left[piece.name] = codec.encode_with(tensor, remembered, generator)
            return payload
        part = None if remembered is None else remembered[rows.start : rows.stop]
        payload, left = codec.encode_with(tensor, part, generator)
        whole = self._left.get(piece.name)
        if whole is None:
            whole = tensor.new_zeros(rows.shape) if remembered is None else remembered.clone()
            self._left[piece.name] = whole
        if left is not None:
            whole[rows.start : rows.stop] = left
        return payload

    def encode_sum(self, codec: ErrorFeedback, piece: Piece, generator: torch.Generator) -> bytes:
        """Encode the sum of all ranks for a piece of this rank's shard, in the second phase."""
        name = second_name(piece)
        payload, left = codec.encode_with(piece.gradient, self.memory.get(name), generator)
        self._left[name] = left
        return payload

    def hand_back(self, pieces: Sequence[Piece], shard: Iterable[Piece]) -> None:
        """Add what was left of rows that are not in this rank's shard to its own gradients."""
        owned = {second_name(piece) for piece in shard if not piece.whole}
        shapes = {one.name: one.rows.shape if one.rows else one.gradient.shape for one in pieces}
        for name in [name for name in self.memory if _ROWS in name and name not in owned]:
            parameter, _, rows = name.rpartition(_ROWS)
            if parameter not in shapes:  # it travels in another message
                continue
            left, whole = self.memory.pop(name), self.memory.get(parameter)
            if left is None:
                continue
            whole = left.new_zeros(shapes[parameter]) if whole is None else whole.clone()
            start, stop = map(int, rows.split(":"))
            whole[start:stop] += left.to(whole)
            self.memory[parameter] = whole

    def keep(self) -> None:
        """Remember what was left out, now that everything has arrived."""
        self._before = {name: self.memory.get(name) for name in self._left}
        self.memory.update(self._left)

    def forget(self, names: Sequence[str]) -> None:
        """Restore what was remembered of some parameters before the update."""
        for name, before in self._before.items():
            if name in names or name.rpartition(_ROWS)[0] in names:
                self.memory[name] = before


def second_name(piece: Piece) -> str:
    """Return the name under which the second phase remembers what it left out.

    Examples
    --------
    >>> second_name(Piece("weight", torch.zeros(40, 40), False))
    'weight rows 0:40'
    """
    rows = (0, len(piece.gradient)) if piece.rows is None else piece.rows[:2]
    return f"{piece.name}{_ROWS}{rows[0]}:{rows[1]}"
