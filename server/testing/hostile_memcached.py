"""A node of memcached that answers as it should until it is told otherwise."""

import contextlib
import socket
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

# Says what it likes to the connection for a command, until that ends.
Answer = Callable[[socket.socket, List[bytes]], None]


class HostileMemcached:
    """Listens at the Unix socket `path` until close(). While `hostile` is set it answers `gets`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.hostile: Optional[Answer] = None
        # Released for each command that the hostile answer was asked for.
        self.asked = threading.Semaphore(0)
        self._items: Dict[bytes, Tuple[bytes, int]] = {}  # with their versions
        self._versions = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                command = line.split()
                if command[0] == b"gets" and self.hostile is not None:
                    self.asked.release()
                    self.hostile(connection, command)
                    return
                value = lines.read(int(command[4]) + 2)[:-2] if command[0] in (b"add", b"set", b"cas") else b""
                with self._lock:
                    connection.sendall(self._answer(command, value))

    def _answer(self, command: List[bytes], value: bytes) -> bytes:
        name, key = command[:2]
        if name == b"gets":
            found = [(key, self._items[key]) for key in command[1:] if key in self._items]
            parts = [b"VALUE %s 0 %d %d\r\n%s\r\n" % (key, len(item), version, item) for key, (item, version) in found]
            return b"".join([*parts, b"END\r\n"])
        present = self._items.get(key)
        if name == b"delete":
            return b"NOT_FOUND\r\n" if self._items.pop(key, None) is None else b"DELETED\r\n"
        if name == b"add" and present is not None:
            return b"NOT_STORED\r\n"
        if name == b"cas" and (present is None or present[1] != int(command[5])):
            return b"NOT_FOUND\r\n" if present is None else b"EXISTS\r\n"
        self._versions += 1
        self._items[key] = value, self._versions
        return b"STORED\r\n"


def drip(connection: socket.socket, command: List[bytes]) -> None:
    """A byte now and then of a value that never ends."""
    connection.sendall(b"VALUE %s 0 900000 1\r\n" % command[1])
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def announce(length: int) -> Answer:
    """A value of so many bytes, of which some come."""

    def answer(connection: socket.socket, command: List[bytes]) -> None:
        connection.sendall(b"VALUE %s 0 %d 1\r\n" % (command[1], length))
        while True:
            connection.sendall(bytes(1 << 16))

    return answer


def foreign_keys(connection: socket.socket, _: List[bytes]) -> None:
    """Items that nobody asked for, for ever."""
    while True:
        connection.sendall(b"VALUE sis1:other 0 1 1\r\nx\r\n")
