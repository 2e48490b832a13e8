"""A relay between clients and servers that counts, delays, holds or stalls bytes."""

import contextlib
import itertools
import socket
import threading
import time


def _connect(address):
    """address: HOST:PORT, or the path of a Unix socket."""
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _listen(path):
    if path is None:
        return socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(100)
    return listener


class Relay:
    """Carries each connection to the next of `servers`, in turn, until close().

    `path` is the Unix socket to listen on; without it the relay picks a port, see `address`. `most` is
    the number of bytes after which a client's bytes are held back, without closing the connection.
    `delay`, in seconds, delays responses, and can be set at any time. Responses wait while `open` is
    cleared."""

    def __init__(self, *servers, path=None, most=None):
        self._servers, self._most = itertools.cycle(servers), most
        self.delay = 0.0
        self.open = threading.Event()
        self.open.set()
        # Bytes to servers, and from them. Counted before the receiver can act on them.
        self.sent = self.received = 0
        self.stalled = threading.Semaphore(0)  # released for each client after `most` of its bytes
        self._lock = threading.Lock()
        self._held = 0
        self._sockets = []
        self._listener = _listen(path)
        self.address = path or "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def held(self):
        """Returns the number of connections with a response that waits for `open`."""
        with self._lock:
            return self._held

    def close(self):
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):  # the other side has closed
                each.shutdown(socket.SHUT_RDWR)  # wakes waiting threads
            each.close()

    def _accept(self):
        for address in self._servers:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = _connect(address)
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            threading.Thread(target=self._to_server, args=[client, server], daemon=True).start()
            threading.Thread(target=self._to_client, args=[server, client], daemon=True).start()

    def _to_server(self, client, server):
        carried = 0
        try:
            while carried != self._most:
                left = 1 << 18 if self._most is None else min(self._most - carried, 1 << 18)
                data = client.recv(left)
                if not data:
                    return server.shutdown(socket.SHUT_WR)
                carried += len(data)
                with self._lock:
                    self.sent += len(data)
                server.sendall(data)
            self.stalled.release()
        except OSError:
            pass  # one side has closed

    def _to_client(self, server, client):
        try:
            while data := server.recv(1 << 18):
                self._hold_up()
                with self._lock:
                    self.received += len(data)
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one side has closed

    def _hold_up(self):
        time.sleep(self.delay)
        with self._lock:
            self._held += 1
        self.open.wait()
        with self._lock:
            self._held -= 1
