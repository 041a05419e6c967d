"""Opening and closing the door itself."""

import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.integration.http.conftest import OpenDoor, Running

from icestream.config import Settings
from icestream.model.errors import UnavailableError
from icestream.server.http import HttpDoor, http_app
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage


def another_door(tmp_path: Path, host: str, port: int) -> HttpDoor:
    storage = IcebergStorage(Settings(data_dir=tmp_path / "other"))
    return HttpDoor(http_app(storage, BrokerMetrics(storage), version="1", ready=lambda: False, doors=dict), host, port)


def test_a_taken_port_is_a_clear_error(http: Running, tmp_path: Path) -> None:
    door = another_door(tmp_path, "127.0.0.1", http.door.port)
    with pytest.raises(UnavailableError, match="in use") as caught:
        door.start()
    assert caught.value.place == f"127.0.0.1:{http.door.port}"
    assert caught.value.retryable is False
    door.stop(1)
    assert http.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1", "x" * 300])
def test_an_impossible_host_is_a_clear_error(tmp_path: Path, host: str) -> None:
    with pytest.raises(UnavailableError, match="cannot be opened"):
        another_door(tmp_path, host, 0).start()


def test_a_door_that_was_stopped_leaves_its_port_and_thread(http: Running, tmp_path: Path) -> None:
    http.door.stop(5)
    http.door.stop(5)
    with pytest.raises(httpx.ConnectError):
        http.client.get("/healthz")
    assert not any(thread.name == "http-door" for thread in threading.enumerate())
    again = another_door(tmp_path, "127.0.0.1", http.door.port)
    again.start()
    assert httpx.get(f"{again.address}/readyz").status_code == 503
    again.stop(5)


def test_ipv6_addresses_are_written_in_brackets(tmp_path: Path) -> None:
    door = another_door(tmp_path, "::1", 0)
    try:
        door.start()
    except UnavailableError:
        pytest.skip("this machine has no IPv6")
    assert door.address == f"http://[::1]:{door.port}"
    assert httpx.get(f"{door.address}/healthz").status_code == 200
    door.stop(5)


def test_signals_are_left_to_the_broker(http: Running) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert http.client.get("/healthz").status_code == 200
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_answers_are_sent_without_delay(http: Running) -> None:
    http.client.get("/healthz")
    assert http.door._server is not None
    (connection,) = http.door._server.server_state.connections
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_request_under_way_is_finished_before_the_door_is_closed(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = open_door()
    inside, go_on = threading.Event(), threading.Event()
    find = http.storage.topics.find

    def slow_find(prefix: str = "") -> list[object]:
        inside.set()
        assert go_on.wait(30)
        return list(find(prefix))

    monkeypatch.setattr(http.storage.topics, "find", slow_find)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(http.client.get, "/api/v1/topics")
        assert inside.wait(30)
        stopping = pool.submit(http.door.stop, 30)
        while http.door._server is not None and http.door._server.servers[0].is_serving():
            time.sleep(0.001)
        go_on.set()
        assert answer.result(30).status_code == 200
        stopping.result(30)


def test_a_fault_of_its_own_is_answered_without_its_inside_and_logged(
    http: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_prefix: str = "") -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(http.storage.topics, "find", fail)
    answer = http.client.get("/api/v1/topics")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error: RuntimeError"
    assert "secret" in capfd.readouterr().out


def test_the_servers_own_warnings_go_to_the_brokers_log(http: Running, capfd: pytest.CaptureFixture[str]) -> None:
    assert http.client.get("/healthz").status_code == 200
    assert capfd.readouterr() == ("", "")
    logging.getLogger("uvicorn.error").warning("something odd")
    assert "something odd" in capfd.readouterr().out
