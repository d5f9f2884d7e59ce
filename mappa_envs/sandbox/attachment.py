"""Talking to the supervisor in a container through the socket that Docker attaches to it."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from typing import Any, Final

_FRAME_HEADER: Final = struct.Struct(">BxxxI")
_LENGTH: Final = struct.Struct(">I")
_STDERR: Final = 2
_CHUNK_BYTES: Final = 1 << 16
_KEPT_COMPLAINTS: Final = 2000
_SEND_S: Final = 30.0


class Attachment:
    """Both directions of a container's standard streams.

    Docker puts what comes from the container into frames, of standard output or standard error,
    each with a header of eight bytes. The frames' boundaries mean nothing: messages (see
    `jail/container.py`) may be split among them.
    """

    def __init__(self, stream: Any) -> None:
        """Take over what docker-py's `attach_socket` returned."""
        self._stream = stream  # closes the socket when it is garbage collected
        self._socket: socket.socket = getattr(stream, "_sock", stream)
        self._raw = bytearray()
        self._messages = bytearray()
        self._complaints = bytearray()

    @property
    def complaints(self) -> str:
        """The end of what the supervisor wrote to its standard error."""
        return self._complaints.decode(errors="replace").strip()

    def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            OSError: the container takes none any more.
        """
        self._socket.settimeout(_SEND_S)
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, until: float, max_bytes: int) -> bytes | None:
        """Return the next message; None if it has not come by then.

        Args:
            until: On the monotonic clock.
            max_bytes: The largest message that makes sense.

        Raises:
            EOFError: the container has ended.
            ValueError: the message is larger.
        """
        while (message := self._whole(max_bytes)) is None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                return None
            except OSError as error:
                raise EOFError(str(error)) from error
            if not chunk:
                raise EOFError("its streams are closed")
            self._raw += chunk
            self._sort()
        return message

    def close(self) -> None:
        """Let go of the container, whose standard input ends with that."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._stream.close()

    def _whole(self, max_bytes: int) -> bytes | None:
        """Return the first message if all of it has come."""
        if len(self._messages) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._messages)
        if size > max_bytes:
            raise ValueError(f"a message of {size} bytes, where {max_bytes} are the most")
        end = _LENGTH.size + size
        if len(self._messages) < end:
            return None
        message = bytes(self._messages[_LENGTH.size : end])
        del self._messages[:end]
        return message

    def _sort(self) -> None:
        """Take the frames that have come whole apart by stream."""
        while len(self._raw) >= _FRAME_HEADER.size:
            stream, size = _FRAME_HEADER.unpack_from(self._raw)
            end = _FRAME_HEADER.size + size
            if len(self._raw) < end:
                return
            content = self._raw[_FRAME_HEADER.size : end]
            del self._raw[:end]
            if stream == _STDERR:
                self._complaints = (self._complaints + content)[-_KEPT_COMPLAINTS:]
            else:
                self._messages += content
