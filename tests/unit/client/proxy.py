"""A TCP proxy that can be cut: the client sees what it sees when a broker's machine goes away."""

import contextlib
import socket
import threading


class Proxy:
    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._cut = False
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections and take no new ones."""
        with self._lock:
            self._cut = True
            open_ones, self._sockets = [self._listener, *self._sockets], []
        for one in open_ones:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                incoming, _ = self._listener.accept()
                outgoing = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    if self._cut:
                        incoming.close()
                        outgoing.close()
                        return
                    self._sockets += [incoming, outgoing]
                for source, sink in ((incoming, outgoing), (outgoing, incoming)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
