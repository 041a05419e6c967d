"""A proxy that loses what one side says while the other side is still heard."""

import contextlib
import socket
import threading

from tests.tcp_proxy import TcpProxy


class LossyProxy(TcpProxy):
    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.lose_requests = threading.Event()
        self.lose_answers = threading.Event()
        self.lost = threading.Event()
        """Something was lost."""

    def serve(self, client: socket.socket) -> None:
        with self.connected() as server:
            back = threading.Thread(target=self._pass_on, args=(server, client, self.lose_answers), daemon=True)
            back.start()
            self._pass_on(client, server, self.lose_requests)
            back.join()

    def heal(self) -> None:
        """End all connections, in which something is missing; new ones are whole."""
        self.lose_requests.clear()
        self.lose_answers.clear()
        self.lost.clear()
        self.cut()

    def _pass_on(self, source: socket.socket, sink: socket.socket, lose: threading.Event) -> None:
        is_lossy = False
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                is_lossy = is_lossy or lose.is_set()  # what follows a loss would be nonsense
                if is_lossy:
                    self.lost.set()
                else:
                    sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
