"""Calls whose connection has ended."""

from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from icestream.client.endpoint import BrokerEndpoint
from icestream.client.transport import Connection
from icestream.model.errors import UnavailableError


class EndingClient:
    """A Flight client whose first calls fail, each with one of these texts."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)
        self.calls = 0

    def do_action(self, _action: fl.Action, _options: Any) -> list[fl.Result]:
        self.calls += 1
        if self._texts:
            raise fl.FlightUnavailableError(f"Flight returned unavailable error, with message: {self._texts.pop(0)}")
        return [fl.Result(pa.py_buffer(b'{"done": true}'))]

    def close(self) -> None:
        pass


def connection_to(client: Any, monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setattr(fl, "FlightClient", lambda *_, **__: client)
    return Connection(BrokerEndpoint("grpc://127.0.0.1:1"), timeout_s=1)


@pytest.mark.parametrize("text", ["failed to connect to all addresses", "Too many pings"])
def test_a_call_is_made_again_on_a_new_connection(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = EndingClient(text)
    assert connection_to(client, monkeypatch).action("describe_topic", {}) == {"done": True}
    assert client.calls == 2


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("describe_topic", ["Too many pings"] * 2),
        ("describe_topic", ["the connection was reset"]),
        ("delete_topic", ["Too many pings"]),
    ],
)
def test_a_call_that_may_have_had_an_effect_or_fails_again_is_not(
    name: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EndingClient(*texts)
    with pytest.raises(UnavailableError):
        connection_to(client, monkeypatch).action(name, {})
    assert client.calls == len(texts)


@pytest.mark.parametrize(("kind", "clients"), [(fl.FlightUnavailableError, 2), (fl.FlightCancelledError, 1)])
def test_only_a_broker_that_cannot_be_reached_costs_the_channel(
    kind: type[fl.FlightError], clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[EndingClient] = []

    def make(*_: object, **__: object) -> EndingClient:
        made.append(EndingClient())
        return made[-1]

    monkeypatch.setattr(fl, "FlightClient", make)
    connection = Connection(BrokerEndpoint("grpc://127.0.0.1:1"), timeout_s=1)
    assert isinstance(connection.typed(kind("ended"), "read"), UnavailableError)
    assert len(made) == clients


def test_the_time_that_a_call_is_held_comes_on_top_of_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connection_to(EndingClient(), monkeypatch)
    timeouts: list[float] = []

    def options(*, timeout: float) -> None:
        timeouts.append(timeout)

    monkeypatch.setattr(connection, "_options", options)
    connection.action("wait_committed", {}, hold_s=5.0)
    connection.action("wait_committed", {}, timeout_s=10.0, hold_s=5.0)
    connection.action("recover_topic", {}, timeout_s=10.0)
    assert timeouts == [6.0, 15.0, 10.0]
