"""What a program writes to its two streams, kept within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

_CHUNK_BYTES = 1 << 16


class Stream:
    """The first and last bytes of one stream, and how many there were."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_bytes = keep_bytes // 2
        self._tail_bytes = keep_bytes - self._head_bytes
        self._head = b""
        self._tail = b""
        self._total = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(chunk)
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        tail = self._tail + chunk[room:]
        self._tail = tail[max(0, len(tail) - self._tail_bytes) :]

    def parts(self) -> tuple[str, str, int, int]:
        """Return head, tail, the number of all bytes, and of those cut between the two."""
        cut = self._total - len(self._head) - len(self._tail)
        parts = (self._head, self._tail) if cut else (self._head + self._tail, b"")
        head, tail = (part.decode(errors="replace") for part in parts)
        return head, tail, self._total, cut


class Streams:
    """The two pipes that a program writes to; iterating yields their descriptors."""

    def __init__(self, stdout: int, stderr: int, keep_bytes: int, total_bytes: int) -> None:
        """Read pipes without waiting.

        Args:
            stdout: The pipe behind the program's standard output.
            stderr: The pipe behind its standard error.
            keep_bytes: How much is kept of each.
            total_bytes: How much of both together is no flood.
        """
        self.stdout, self.stderr = Stream(keep_bytes), Stream(keep_bytes)
        self.flooded = False
        """Whether there were more than `total_bytes`; from then on nothing is kept."""
        self._streams = {stdout: self.stdout, stderr: self.stderr}
        self._room = total_bytes
        for fd in self:
            os.set_blocking(fd, False)

    def __iter__(self) -> Iterator[int]:
        return iter(self._streams)

    def read(self, fd: int) -> bool:
        """Take what a pipe has to give; return False at its end.

        Raises:
            BlockingIOError: there is nothing yet.
        """
        chunk = os.read(fd, _CHUNK_BYTES)
        if not self.flooded:
            self._streams[fd].add(chunk[: self._room])
            self.flooded = len(chunk) > self._room
            self._room -= min(len(chunk), self._room)
        return bool(chunk)

    def drain(self) -> None:
        """Take what is left after the program, and never wait for a pipe to close."""
        for fd in self:
            with suppress(BlockingIOError):
                while not self.flooded and self.read(fd):
                    pass
