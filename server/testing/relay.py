"""A relay between clients and a server that counts or stalls bytes."""

import contextlib
import socket
import threading


class Relay:
    """Carries each connection to `server`, HOST:PORT, until close(). `most` is the number of bytes after which a client's
    bytes are held back, without closing the connection."""

    def __init__(self, server, most=None):
        host, _, port = server.rpartition(":")
        self._server, self._most = (host, int(port)), most
        # Bytes to the server, and from it. Counted before the receiver can act on them.
        self.sent = self.received = 0
        self.stalled = threading.Semaphore(0)  # released for each client after `most` of its bytes
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for each in self._sockets:
            with contextlib.suppress(OSError):  # the other side has closed
                each.shutdown(socket.SHUT_RDWR)  # wakes waiting threads
            each.close()

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                threading.Thread(target=self._to_server, args=[client, server], daemon=True).start()
                threading.Thread(target=self._to_client, args=[server, client], daemon=True).start()

    def _to_server(self, client, server):
        carried = 0
        with contextlib.suppress(OSError):  # one side has closed
            while carried != self._most:
                data = client.recv(1 << 18 if self._most is None else min(self._most - carried, 1 << 18))
                if not data:
                    return server.shutdown(socket.SHUT_WR)
                carried += len(data)
                with self._lock:
                    self.sent += len(data)
                server.sendall(data)
            self.stalled.release()

    def _to_client(self, server, client):
        with contextlib.suppress(OSError):  # one side has closed
            while data := server.recv(1 << 18):
                with self._lock:
                    self.received += len(data)
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
