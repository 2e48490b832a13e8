"""A proxy that holds up what a server hears of its store."""

import socket
import threading
import time


class SlowProxy:
    """Stands before a memcached at `path`; its answers take `delay` seconds longer, and wait while
    `open` is cleared."""

    def __init__(self, path, node):
        self.path, self.delay = path, 0.0
        self.open = threading.Event()
        self.open.set()
        self._node = node
        self._lock = threading.Lock()
        self._held = 0  # guarded by _lock
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def held(self):
        """How many connections have an answer that waits for `open`."""
        with self._lock:
            return self._held

    def _accept(self):
        while True:
            client, _ = self._listener.accept()
            node = socket.socket(socket.AF_UNIX)
            node.connect(self._node)
            threading.Thread(target=self._carry, args=[client, node, False], daemon=True).start()
            threading.Thread(target=self._carry, args=[node, client, True], daemon=True).start()

    def _carry(self, source, target, slowly):
        with source:
            try:
                while data := source.recv(1 << 16):
                    if slowly:
                        self._hold_up()
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the other side has gone

    def _hold_up(self):
        time.sleep(self.delay)
        with self._lock:
            self._held += 1
        self.open.wait()
        with self._lock:
            self._held -= 1
