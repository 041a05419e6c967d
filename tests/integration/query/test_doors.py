"""SQL through every door of a broker."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.reading import Stage

from icestream import Client, aio
from icestream.app import Broker
from icestream.model.errors import InvalidRequestError, OverloadedError, TopicNotFoundError

SERVER = {"flight_port": 0, "http_port": 0, "otlp_grpc_port": -1, "otlp_http_port": -1}
QUERY = {"max_queries": 2, "max_result_rows": 50, "max_result_bytes": 4096}
PATIENCE_SECONDS = 30.0
MANY = "SELECT range AS n, repeat('x', 1000) AS text FROM range(100000000)"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """60 messages: the table has 40."""
    path: Path = tmp_path_factory.mktemp("sql")
    stage = Stage(path, server=SERVER, query=QUERY)
    stage.publish([b"%d" % number for number in range(40)])
    stage.commit()
    stage.publish([b"\xff%d" % number for number in range(20)])
    stage.close()
    with Broker(stage.settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.doors["flight"]) as opened:
        yield opened


def post(broker: Broker, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{broker.doors['http']}/api/v1/sql", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_client_gets_a_table(client: Client) -> None:
    assert client.sql("SELECT count(*) AS n FROM default.events") == pa.table({"n": [60]})
    assert client.sql("SELECT count(*) AS n FROM default.events", fresh=False) == pa.table({"n": [40]})
    assert client.sql("SELECT offset, key FROM events WHERE offset > 99").schema.names == ["offset", "key"]


def test_the_client_for_asyncio_too(broker: Broker) -> None:
    async def ask() -> pa.Table:
        async with aio.Client(broker.doors["flight"]) as client:
            return await client.sql("SELECT max(offset) AS last FROM default.events", fresh=False)

    assert asyncio.run(ask()) == pa.table({"last": [39]})


def test_errors_come_as_they_are(client: Client) -> None:
    with pytest.raises(TopicNotFoundError, match="default/nothing"):
        client.sql("SELECT * FROM default.nothing")
    with pytest.raises(InvalidRequestError, match="Conversion Error"):
        client.sql("SELECT decode(payload)::int FROM default.events WHERE offset < 50 AND 'x'::int = 1")
    with pytest.raises(InvalidRequestError, match="only a SELECT"):
        list(client.sql_batches("DROP VIEW default.events"))


def test_who_stops_reading_ends_the_query(client: Client) -> None:
    for _ in range(4):  # there are two places
        batches = client.sql_batches(MANY)
        assert sum(batch.num_rows for batch in islice(batches, 4)) > 100
        batches.close()
        assert _eventually(client) == 1


def _eventually(client: Client) -> int:
    """The broker learns a moment later that nobody reads."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return int(client.sql("SELECT 1 AS one").column("one")[0].as_py())
        except OverloadedError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "ticket", [{"sql": 1}, {"sql": "SELECT 1", "fresh": "no"}, {"sql": "SELECT 1", "topic": "a/b"}, {"sql": None}]
)
def test_wrong_tickets_are_refused(broker: Broker, ticket: dict[str, Any]) -> None:
    with fl.FlightClient(broker.doors["flight"]) as plain, pytest.raises(fl.FlightServerError):
        plain.do_get(fl.Ticket(json.dumps(ticket).encode())).read_all()


def test_a_filter_may_speak_of_sql(client: Client) -> None:
    assert client.read("default/events", where="""key = '"sql"'""").num_rows == 0


def test_http_answers_with_rows(broker: Broker) -> None:
    status, answer = post(broker, {"sql": "SELECT offset, payload FROM events WHERE offset IN (3, 40) ORDER BY 1"})
    assert (status, answer) == (
        200,
        {
            "columns": [{"name": "offset", "type": "int64"}, {"name": "payload", "type": "binary"}],
            "rows": [{"offset": 3, "payload": "3"}, {"offset": 40, "payload_base64": "/zA="}],
            "truncated": False,
        },
    )
    assert post(broker, {"sql": "SELECT count(*) AS n FROM events", "fresh": False})[1]["rows"] == [{"n": 40}]


def test_http_answers_are_bounded(broker: Broker) -> None:
    _, answer = post(broker, {"sql": "SELECT offset FROM events ORDER BY 1"})
    assert ([row["offset"] for row in answer["rows"]], answer["truncated"]) == (list(range(50)), True)
    _, answer = post(broker, {"sql": MANY})
    assert answer["truncated"]
    assert len(answer["rows"]) < 10


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sql": "SELECT * FROM a.b"}, 404, "topic_not_found"),
        ({"sql": "SELECT nope FROM events"}, 400, "invalid_request"),
        ({"sql": "COPY (SELECT 1) TO '/nowhere/x'"}, 400, "invalid_request"),
        ({"sql": "SELECT 1", "limit": 1}, 400, "invalid_request"),
        ({}, 400, "invalid_request"),
    ],
)
def test_http_refuses(broker: Broker, body: dict[str, Any], status: int, code: str) -> None:
    given, answer = post(broker, body)
    assert (given, answer["error"]["code"]) == (status, code)
