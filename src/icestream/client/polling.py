"""How gRPC, inside Flight, waits for the network.

By default every message passes through gRPC's event engine: a thread that polls wakes one that reads, which wakes the
one that waits. With the engine switched off the waiting thread polls by itself, and a round trip takes about half the
time (docs/decisions/0006). The switch is an environment variable that gRPC reads once, so it is set only until Flight's
gRPC has read it, and not at all where somebody has set it already.
"""

import os
import threading

import pyarrow.flight as fl

CLIENT = "-event_engine_client"
SERVER = "-event_engine_listener"

_VARIABLE = "GRPC_EXPERIMENTS"
_NOWHERE = "grpc://127.0.0.1:1"
_lock = threading.Lock()
_done = False


def poll_directly(side: str) -> None:
    """To be called before the first Flight client or server is made; later it has no effect.

    Each process switches its own side only: with both off, a server did not always come to its end.
    """
    global _done  # noqa: PLW0603 - gRPC's own switch is one for the whole process
    with _lock:
        if _done or _VARIABLE in os.environ:
            return
        _done = True
        os.environ[_VARIABLE] = side
        try:
            fl.connect(_NOWHERE).close()  # connects to nothing, but makes gRPC read its switches
        finally:
            del os.environ[_VARIABLE]
