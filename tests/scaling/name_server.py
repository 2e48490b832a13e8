"""A DNS server of a test's own."""

import socket
import struct
import threading
from typing import List, Sequence


class NameServer:
    """Says of every name that it has the addresses of the moment; over UDP, on a free port."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses: List[str] = list(addresses)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(1 << 16)
            if not query:
                return
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\0", 12) + 5  # of the question: a name, its type, its class
        (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
        records = [] if kind != 1 else [socket.inet_aton(address) for address in self.addresses]
        head = query[:2] + struct.pack("!HHHHH", 0x8580, 1, len(records), 0, 0)
        # The name of the question, IN A, for no time at all.
        return head + query[12:end] + b"".join(
            struct.pack("!HHHIH", 0xC00C, 1, 1, 0, len(record)) + record for record in records
        )  # fmt: skip
