"""Brokers of tests start as forks of a process that has imported what a broker needs: a second of processor time less.

The template is a process without threads. A request names the arguments and the environment of a command, and carries
three file descriptors: stdout, stderr, and a pipe that gets the broker's process id and, later, its exit code. A fork
runs the same `main` as `icestream`. Tests in `tests/e2e` start the real command.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_MAX_REQUEST = 1 << 20


class ForkedProcess:
    """What `BrokerProcess` uses of `subprocess.Popen`."""

    def __init__(self, stdout: IO[bytes], status: int) -> None:
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status
        self._received = b""
        self.pid = int(self._line(None) or b"0")

    def _line(self, timeout: float | None) -> bytes | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(timeout):
                    return None
                data = os.read(self._status, 64)
                assert data, "the template of brokers has died"
                self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            line = self._line(timeout)
            if line is None:
                raise subprocess.TimeoutExpired("serve", timeout or 0.0)
            self.returncode = int(line)
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class BrokerTemplate:
    """Starts with the first broker. `spawn` stands for `subprocess.Popen` in `BrokerProcess`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def spawn(
        self, command: Sequence[str], *, stdin: int, stdout: int, stderr: IO[bytes], env: Mapping[str, str]
    ) -> ForkedProcess:
        assert command[:3] == [sys.executable, "-m", "icestream.cli"]
        assert (stdin, stdout) == (subprocess.DEVNULL, subprocess.PIPE)
        requests = self._start()
        output, output_there = os.pipe()
        status, status_there = os.pipe()
        request = json.dumps({"arguments": command[3:], "environ": dict(env), "cwd": str(Path.cwd())}).encode()
        try:
            socket.send_fds(requests, [request], [output_there, stderr.fileno(), status_there])
        finally:
            os.close(output_there)
            os.close(status_there)
        return ForkedProcess(os.fdopen(output, "rb", buffering=0), status)

    def _start(self) -> socket.socket:
        if self._requests is None:
            self._requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (self._requests, there):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
            )
            there.close()
        return self._requests

    def close(self) -> None:
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait()


def serve(requests: socket.socket) -> None:
    """Fork a broker for each request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait for brokers
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 3)
        if not data:
            return
        if not os.fork():
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run_and_report(json.loads(data), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_and_report(request: dict[str, Any], stdout: int, stderr: int, status: int) -> None:
    """Fork once more, so that one process can wait for the broker, which may be killed."""
    pid = os.fork()
    if not pid:
        os.close(status)
        _exit_with(lambda: _run(request, stdout, stderr))
    os.close(stdout)
    os.close(stderr)
    os.write(status, b"%d\n" % pid)
    _, code = os.waitpid(pid, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
    os._exit(0)


def _run(request: dict[str, Any], stdout: int, stderr: int) -> None:
    for number, descriptor in ((1, stdout), (2, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    sys.argv = ["icestream", *request["arguments"]]
    from icestream.cli.main import main  # noqa: PLC0415 - imported before, by the template

    main()


def _exit_with(run: Callable[[], None]) -> None:
    code: object = 0
    try:
        run()
    except SystemExit as stop:
        code = stop.code
    except BaseException:  # noqa: BLE001 - as Python does at the end of a program
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


if __name__ == "__main__":
    import pyiceberg.catalog.sql  # noqa: F401

    serve(socket.socket(fileno=int(sys.argv[1])))
