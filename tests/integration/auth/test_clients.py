"""Tokens through everything that talks to a broker: OpenTelemetry, Spark, the pipeline, asyncio, the environment."""

import asyncio
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from tests.integration.auth.conftest import ACME, FOREIGN, GLOBEX, OWN, ROOT, UNKNOWN, Guarded
from tests.otlp_requests import serialized

from icestream import BrokerEndpoint, Client, aio
from icestream.model.errors import InvalidRequestError, PermissionDeniedError, UnauthenticatedError
from icestream.model.names import TopicName
from icestream.pipeline.driver import Runner
from icestream.pipeline.tasks import FromBroker, Written, write_parcels
from icestream.server.otlp.grpc_door import METHODS
from icestream.spark.columns import frame_schema
from icestream.spark.options import SourceOptions
from icestream.spark.source import TopicBatchReader
from icestream.table import Tables
from icestream.telemetry import Signal


class InlineJobs:
    """Runs tasks where it is called."""

    parallelism = 1

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        return list(write_parcels(parcels))


class TestTelemetry:
    """What each tenant sends by OTLP it reads by the other doors, and nobody else does."""

    def send_http(self, guarded: Guarded, token: str | None, tenant: str | None) -> int:
        headers = {"Content-Type": "application/x-protobuf"} | ({} if tenant is None else {"x-tenant-id": tenant})
        with guarded.http(token, "otlp_http") as http:
            return http.post("/v1/logs", content=serialized(Signal.LOGS), headers=headers).status_code

    def send_grpc(self, guarded: Guarded, token: str | None, tenant: str | None) -> int:
        headers = {"authorization": token and f"Bearer {token}", "x-tenant-id": tenant}
        metadata = tuple((name, value) for name, value in headers.items() if value is not None)
        with grpc.insecure_channel(guarded.broker.doors["otlp_grpc"].removeprefix("http://")) as channel:
            call: Any = channel.unary_unary(f"/{METHODS[Signal.LOGS]}/Export")
            try:
                call(serialized(Signal.LOGS), metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                code: int = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}[error.code().name]
                return code
        return 200

    @pytest.mark.parametrize("door", ["http", "grpc"])
    def test_the_matrix(self, guarded: Guarded, door: str) -> None:
        send = self.send_http if door == "http" else self.send_grpc
        for token, tenant, status in (
            (None, None, 401),
            (None, "acme", 401),
            (UNKNOWN, "acme", 401),
            (ACME, None, 200),
            (ACME, "globex", 403),
            (GLOBEX, "acme", 403),
            (ROOT, "globex", 200),
        ):
            assert send(guarded, token, tenant) == status
        assert guarded.acme.read("acme/logs").num_rows
        assert guarded.acme.sql("SELECT count(*) AS n FROM acme.logs")["n"].to_pylist()[0]
        with pytest.raises(PermissionDeniedError):
            guarded.acme.read("globex/logs")
        with guarded.client(GLOBEX) as globex, pytest.raises(PermissionDeniedError):
            globex.read("acme/logs")


class TestSpark:
    def options(self, guarded: Guarded, topic: str, token: str) -> SourceOptions:
        return SourceOptions.parse({"broker": guarded.broker.doors["flight"], "topic": topic, "token": token})

    def test_a_frame_of_ones_own(self, guarded: Guarded) -> None:
        options = self.options(guarded, OWN, ACME)
        with options.connect() as client:
            reader = TopicBatchReader(options, frame_schema(client.describe_topic(options.topic), None))
        reader = pickle.loads(pickle.dumps(reader))  # as Spark does it
        assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 3
        assert ACME not in repr(options)

    def test_a_frame_of_anothers(self, guarded: Guarded) -> None:
        options = self.options(guarded, FOREIGN, ACME)
        with options.connect() as client, pytest.raises(PermissionDeniedError):
            client.describe_topic(options.topic)


class TestPipeline:
    def test_it_writes_with_a_token_that_may_do_everything(self, guarded: Guarded) -> None:
        settings = guarded.broker.settings.model_copy(
            update={"pipeline": guarded.broker.settings.pipeline.model_copy(update={"topics": "*/events"})}
        )
        tables = Tables(settings)
        try:
            with guarded.client(ROOT) as client, Runner(settings, client, tables, InlineJobs()) as runner:
                figures = runner.drain(threading.Event())
            assert figures.messages == 6
            with (
                guarded.client(ACME) as client,
                Runner(settings, client, tables, InlineJobs()) as runner,
                pytest.raises(PermissionDeniedError),
            ):
                runner.drain(threading.Event())
        finally:
            tables.close()

    def test_tasks_carry_the_token_and_do_not_show_it(self, guarded: Guarded) -> None:
        fetch = pickle.loads(pickle.dumps(FromBroker(BrokerEndpoint(guarded.broker.doors["flight"], token=ROOT))))
        assert ROOT not in repr(fetch)
        described = guarded.root.describe_topic(OWN)
        read = fetch.read(TopicName.parse(OWN), described.stream_id, 0, 3)
        assert sum(batch.num_rows for batch in read.batches()) == 3
        other = FromBroker(
            BrokerEndpoint(guarded.broker.doors["flight"], token=GLOBEX)
        )  # another token is another connection
        with pytest.raises(PermissionDeniedError):
            list(other.read(TopicName.parse(OWN), described.stream_id, 0, 3).batches())


def test_the_environment_gives_the_token(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    address = guarded.broker.doors["flight"]
    monkeypatch.setenv("ICESTREAM_TOKEN", f" {ACME}\n")
    with Client(address) as client:
        assert client.read(OWN).num_rows == 3
        with pytest.raises(PermissionDeniedError):
            client.read(FOREIGN)
    with Client(address, token=GLOBEX) as client:  # what is given counts for more
        assert client.read(FOREIGN).num_rows == 3
    monkeypatch.setenv("ICESTREAM_TOKEN", "")
    with Client(address) as client, pytest.raises(UnauthenticatedError):
        client.ping()


def test_asyncio(guarded: Guarded) -> None:
    async def run() -> None:
        async with aio.Client(guarded.broker.doors["flight"], token=ACME) as client:
            assert (await client.read(OWN)).num_rows == 3
            with pytest.raises(PermissionDeniedError):
                await client.read(FOREIGN)

    asyncio.run(run())


@pytest.mark.parametrize("token", ["two words", "umlaut-ö-token", "line\nbreak", "tab\ttoken"])
def test_what_can_be_no_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Client("grpc://127.0.0.1:1", token=token)
    assert token not in str(caught.value)
