"""Decoding of pictures in processes with limits on memory and time."""

from __future__ import annotations

import json
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from accelerando.crowd.experiment.metadata import without_metadata

__all__ = ["Decoded", "decode_pictures"]

# Run by its path, without the packages that this process has imported: it starts in 0.2 seconds.
_PROGRAM = Path(__file__).with_name("decoder.py")
_SECONDS = 60.0
_PROCESSES = 4
_PER_PROCESS = 8
_MOST_BYTES = 2**30
_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


@dataclass(frozen=True)
class Decoded:
    """A picture as browsers get it.

    Attributes
    ----------
    reason : str
        Why it cannot be shown, or ``""``.
    type : str
        MIME type of `data`.
    data : bytes
        The picture without metadata: the file's own pixels, or a conversion.
    sizes : dict of int to (str, bytes)
        Smaller copies: width in pixels to type and content.
    """

    reason: str
    type: str = ""
    data: bytes = field(default=b"", repr=False)
    sizes: dict[int, tuple[str, bytes]] = field(default_factory=dict, repr=False)


def decode_pictures(
    pictures: Mapping[str, tuple[str, bytes]], pixels: int, seconds: float = _SECONDS
) -> dict[str, Decoded]:
    """Decode pictures and return what browsers get, or why they cannot be shown.

    Parameters
    ----------
    pictures : dict of name to (type, bytes)
    pixels : int
        Maximum width times height.
    seconds : float, default=60
        Time for one picture.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in pictures:
        waiting.put(name)
    found: dict[str, Decoded] = {}
    failures: list[BaseException] = []

    def work() -> None:
        decoder = _Decoder(pixels, seconds)
        try:
            with suppress(queue.Empty):
                while not failures:
                    name = waiting.get_nowait()
                    kind, data = pictures[name]
                    found[name] = decoder.decode(kind, data)
        except BaseException as error:  # raised again in the caller's thread
            failures.append(error)
        finally:
            decoder.stop()

    most = min(_PROCESSES, os.cpu_count() or 1, -(-len(pictures) // _PER_PROCESS))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(most)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


class _Decoder:
    """A process that decodes one picture at a time; a new one after it died."""

    def __init__(self, pixels: int, seconds: float) -> None:
        self.pixels, self.seconds = pixels, seconds
        self.process: subprocess.Popen[bytes] | None = None

    def decode(self, kind: str, data: bytes) -> Decoded:
        if self.process is None:
            self.process = subprocess.Popen(  # noqa: S603 (our own program)
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        process, late = self.process, threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.seconds, end)
        timer.start()
        try:
            return self._ask(process, kind, data)
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            self.stop()
            return Decoded(
                f"decoding it takes more than {self.seconds:g} seconds"
                if late.is_set()
                else "decoding it ended the decoder"
            )
        finally:
            timer.cancel()

    def _ask(self, process: subprocess.Popen[bytes], kind: str, data: bytes) -> Decoded:
        assert process.stdin is not None
        assert process.stdout is not None
        order = json.dumps({"kind": kind, "pixels": self.pixels}).encode()
        process.stdin.write(struct.pack(">II", len(data), len(order)) + order)
        process.stdin.write(data)
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise EOFError
        answer = json.loads(line)
        parts = []
        for shown, width, size in answer["shown"]:
            # A decoder that a picture has taken over must not choose what the service stores.
            if shown not in _TYPES or type(width) is not int or not 0 <= size <= _MOST_BYTES:
                raise ValueError(shown)
            content = process.stdout.read(size)
            if len(content) < size:
                raise EOFError
            parts.append((shown, width, content))
        if not parts:
            return Decoded(str(answer["reason"])[:300] or "the decoder gave no answer")
        (shown, _, content), *smaller = parts
        sizes = {width: (one, copy) for one, width, copy in smaller}
        return Decoded("", shown, without_metadata(content, shown), sizes)

    def stop(self) -> None:
        """End the process; the next picture starts another one."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        process.wait()
