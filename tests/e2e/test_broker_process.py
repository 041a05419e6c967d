from pathlib import Path

import pytest

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.model.errors import UnavailableError


def test_a_killed_broker_comes_back_on_the_same_ports_with_what_it_acknowledged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        doors, pid = dict(broker.doors), broker.pid
        with Client(broker.flight) as client:
            with client.producer("t") as producer:
                assert producer.send(b"kept").offset == 0
            broker.kill()
            assert not broker.is_running
            broker.start()
            assert (broker.doors, broker.pid != pid) == (doors, True)
            assert client.read("t")["payload"].to_pylist() == [b"kept"]
        assert broker.restart().doors == doors
        assert broker.terminate() == 0


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", environ={"ICESTREAM_WAL__SYNC_MODE": "sometimes"})
    with pytest.raises(UnavailableError, match=r"wal\.sync_mode .* is 'sometimes'"):
        broker.start()
    assert not broker.is_running


def test_settings_of_the_caller_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_SERVER__HOST", "192.0.2.1")
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.flight.startswith("grpc://127.0.0.1:")
