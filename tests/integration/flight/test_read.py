"""DoGet, ListFlights and GetFlightInfo against `docs/protocol.md`, with a plain Flight client."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import PlainClient, encoded, failure, messages

TOPIC = "flight/topic"
COUNT = 60


def number(payload: bytes) -> int:
    return int(payload.split(b":")[0])


@pytest.fixture
def times(client: PlainClient) -> list[int]:
    """A topic of 60 messages in batches of 1 to 3; the time of each message."""
    stream = client.publishing()
    times: list[int] = []
    while len(times) < COUNT:
        count = min(len(times) % 3 + 1, COUNT - len(times))
        payloads = [f"{len(times) + place}:".encode() + b"x" * 50 for place in range(count)]
        times += [stream.publish(messages(*payloads), topic=TOPIC)["publish_time_us"]] * count
    return times


def offsets(client: PlainClient, **fields: Any) -> list[int]:
    table = client.read(topic=TOPIC, **fields)
    found: list[int] = table["offset"].to_pylist()
    assert [number(payload) for payload in table["payload"].to_pylist()] == found
    return found


@pytest.mark.usefixtures("times")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, range(60)),
        ({"start": None}, range(60)),
        ({"start": "earliest"}, range(60)),
        ({"start": "latest"}, range(0)),
        ({"start": 0}, range(60)),
        ({"start": 17}, range(17, 60)),
        ({"start": 59}, range(59, 60)),
        ({"start": 60}, range(0)),
        ({"start": {"time_us": 0}}, range(60)),
        ({"start": {"time_us": 1 << 60}}, range(0)),
        ({"end": 0}, range(0)),
        ({"end": 1}, range(1)),
        ({"end": 60}, range(60)),
        ({"start": 10, "end": 20}, range(10, 20)),
        ({"start": 20, "end": 10}, range(0)),
        ({"max_messages": 7}, range(7)),
        ({"start": 50, "max_messages": 100}, range(50, 60)),
        ({"start": 11, "end": 20, "max_messages": 4}, range(11, 15)),
        ({"start": 11, "end": 13, "max_messages": 4}, range(11, 13)),
        ({"start": 3, "end": 20, "follow": True}, range(3, 20)),
        ({"start": 3, "max_messages": 9, "follow": True}, range(3, 12)),
        ({"follow": False}, range(60)),
    ],
    ids=repr,
)
def test_a_range_is_read_exactly(client: PlainClient, fields: dict[str, Any], expected: range) -> None:
    assert offsets(client, **fields) == list(expected)


def test_a_time_means_the_first_message_published_at_or_after_it(client: PlainClient, times: list[int]) -> None:
    assert all(earlier <= later for earlier, later in pairwise(times))
    for time_us in sorted({*times, *(time + 1 for time in times)}):
        expected = [offset for offset, published in enumerate(times) if published >= time_us]
        assert offsets(client, start={"time_us": time_us}) == expected


@pytest.mark.usefixtures("times")
@pytest.mark.parametrize("fields", [{"start": 61}, {"start": 1 << 62}, {"end": 61}, {"start": 61, "follow": True}])
def test_an_offset_beyond_the_end_is_out_of_range_and_the_details_name_both_ends(
    client: PlainClient, fields: dict[str, Any]
) -> None:
    error = failure(client.read, topic=TOPIC, **fields)
    assert error["code"] == "offset_out_of_range"
    assert error["details"] == {"start_offset": 0, "durable_end": 60}
    assert not error["retryable"]
    assert error["remedy"]


def test_messages_that_were_in_a_lost_table_are_an_error_and_not_a_shorter_topic(open_door: OpenDoor) -> None:
    running = open_door(wal={"max_file_size": 4096})
    stream = running.client.publishing()
    for _ in range(30):
        stream.publish(messages(b"x" * 1000), topic=TOPIC)
    log = running.storage.topic(TOPIC).log
    log.prune(20)
    assert log.start_offset > 5
    for start in (5, "earliest"):
        error = failure(running.client.read, topic=TOPIC, start=start)
        assert (error["code"], error["details"]["in_table_below"]) == ("table_lost", log.start_offset)
    found = running.client.read(topic=TOPIC, start=log.start_offset)["offset"].to_pylist()
    assert found == list(range(log.start_offset, 30))


@pytest.mark.usefixtures("times")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"start": "first"}, "invalid_request"),
        ({"start": -1}, "invalid_request"),
        ({"start": 1.5}, "invalid_request"),
        ({"start": True}, "invalid_request"),
        ({"start": []}, "invalid_request"),
        ({"start": {"time": 0}}, "invalid_request"),
        ({"start": {"time_us": 0, "x": 1}}, "invalid_request"),
        ({"start": {"time_us": "now"}}, "invalid_request"),
        ({"end": "last"}, "invalid_request"),
        ({"end": -1}, "offset_out_of_range"),
        ({"follow": 1}, "invalid_request"),
        ({"max_messages": "all"}, "invalid_request"),
        ({"max_messages": -1}, "invalid_request"),
        ({"max_messages": 1 << 63}, "invalid_request"),
        ({"end": -(1 << 63) - 1}, "invalid_request"),
        ({"from": 0}, "invalid_request"),
        ({"\ud800": 0}, "invalid_request"),
        ({"topic": "flight/other"}, "topic_not_found"),
        ({"topic": "a/../b"}, "invalid_name"),
        ({"topic": None}, "invalid_request"),
        ({"topic": ["flight", "topic"]}, "invalid_request"),
    ],
    ids=repr,
)
def test_a_ticket_that_is_not_as_the_page_says_is_refused(
    client: PlainClient, fields: dict[str, Any], code: str
) -> None:
    assert failure(client.read, **{"topic": TOPIC, **fields})["code"] == code


@pytest.mark.parametrize("ticket", [b"", b"{}", b"[]", b"\xff\xfe", b"x" * 2_000_000, b"[" * 100_000, b"9" * 5000])
def test_a_ticket_that_is_no_such_object_is_refused(client: PlainClient, ticket: bytes) -> None:
    assert failure(lambda: client.reader(ticket).read_all())["code"] == "invalid_request"


def test_a_follower_sees_each_message_when_it_is_durable_in_order_and_once(
    running: Running, client: PlainClient
) -> None:
    client.action("create_topic", topic=TOPIC)
    reader = running.connect().reader(topic=TOPIC, follow=True)
    stream = client.publishing()
    seen: list[int] = []
    for offset in range(40):
        stream.publish(messages(str(offset).encode()), topic=TOPIC)
        while len(seen) <= offset:
            seen += reader.read_chunk().data["offset"].to_pylist()
    assert seen == list(range(40))
    reader.cancel()


def test_a_follower_with_an_end_stops_there(running: Running, client: PlainClient) -> None:
    client.action("create_topic", topic=TOPIC)
    reader = running.connect().reader(topic=TOPIC, follow=True, end=5)
    stream = client.publishing()
    for _ in range(4):
        stream.publish(messages(b"a", b"b"), topic=TOPIC)
    assert reader.read_all()["offset"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_follower_at_the_latest_sees_only_what_comes_after(running: Running, client: PlainClient) -> None:
    stream = client.publishing()
    stream.publish(messages(b"old"), topic=TOPIC)
    reader = running.connect().reader(topic=TOPIC, start="latest", follow=True, max_messages=1)
    assert reader.schema.names[0] == "offset"  # the call was accepted, so its start is fixed
    stream.publish(messages(b"new"), topic=TOPIC)
    assert reader.read_all()["payload"].to_pylist() == [b"new"]


def test_a_cancelled_follower_is_let_go(open_door: OpenDoor) -> None:
    """Its place among the streams is free again, without anything being published."""
    running = open_door(server={"max_connections": 1})
    running.client.action("create_topic", topic=TOPIC)
    first = running.client.reader(topic=TOPIC, follow=True)
    assert first.schema.names
    first.cancel()
    with pytest.raises(fl.FlightError):
        first.read_chunk()
    assert any(read_or_none(running.connect()) is not None for _ in range(10_000))


def read_or_none(client: PlainClient) -> pa.Table | None:
    try:
        return client.read(topic=TOPIC)
    except fl.FlightUnavailableError:
        return None
    finally:
        client.close()


def test_messages_that_no_memory_holds_any_more_are_read_from_the_files(open_door: OpenDoor) -> None:
    running = open_door(wal={"max_file_size": 65536, "cache_max_bytes": 10_000, "index_interval_bytes": 4096})
    stream = running.client.publishing()
    for start in range(0, 2000, 20):
        payloads = [f"{start + place}:".encode() + b"x" * 100 for place in range(20)]
        stream.write(messages(*payloads), topic=TOPIC, more=True)
    stream.finish()
    assert offsets(running.client) == list(range(2000))
    for start in range(0, 2000, 177):
        assert offsets(running.client, start=start, max_messages=3) == list(range(start, min(start + 3, 2000)))


def infos(client: PlainClient, criteria: bytes = b"") -> Iterator[fl.FlightInfo]:
    yield from client.flight.list_flights(criteria)


def test_topics_are_listed_with_schema_count_and_a_ticket_that_reads_them(client: PlainClient) -> None:
    schema = pa.schema([pa.field("x", pa.int32())])
    client.action("create_topic", topic="other/numbers", schema=encoded(schema))
    client.publishing(schema).publish(
        pa.record_batch([pa.array([1, 2, 3], pa.int32())], schema=schema), topic="other/numbers"
    )
    client.publishing().publish(messages(b"a", b"b"), topic=TOPIC)
    found = {b"/".join(info.descriptor.path): info for info in infos(client)}
    assert {name: info.total_records for name, info in found.items()} == {b"flight/topic": 2, b"other/numbers": 3}
    for info in found.values():
        (endpoint,) = info.endpoints
        table = client.flight.do_get(endpoint.ticket).read_all()
        assert table.schema.equals(info.schema)
        assert table.num_rows == info.total_records
    assert [info.descriptor.path for info in infos(client, b"oth")] == [[b"other", b"numbers"]]
    assert list(infos(client, b"\xff")) == []


def test_a_listing_opens_no_log_so_a_damaged_topic_hides_no_other(running: Running, tmp_path: Path) -> None:
    running.client.publishing().publish(messages(b"x" * 1000), topic="flight/bad")
    running.client.publishing().publish(messages(b"a", b"b"), topic="flight/good")
    running.storage.close()
    (segment,) = (tmp_path / "data-0" / "wal" / "flight" / "bad").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[600] ^= 1
    segment.write_bytes(data)
    running.storage.open()
    assert [(info.total_records, info.total_bytes) for info in infos(running.client)] == [(-1, -1), (-1, -1)]
    assert all(topic.opened_log is None for topic in running.storage.topics.find(""))
    assert running.client.read(topic="flight/good").num_rows == 2
    assert [info.total_records for info in infos(running.client)] == [-1, 2]


def test_a_topic_is_described_by_its_path(client: PlainClient) -> None:
    client.publishing().publish(messages(b"a", b"b"), topic=TOPIC)
    info = client.flight.get_flight_info(fl.FlightDescriptor.for_path("flight", "topic"))
    assert info.total_records == 2
    assert client.flight.do_get(info.endpoints[0].ticket).read_all()["payload"].to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("descriptor", "code"),
    [
        (fl.FlightDescriptor.for_path("flight", "other"), "topic_not_found"),
        (fl.FlightDescriptor.for_path("flight", "..", "x"), "invalid_name"),
        (fl.FlightDescriptor.for_path(), "invalid_name"),
        (fl.FlightDescriptor.for_command(b"SELECT 1"), "invalid_name"),
    ],
    ids=["unknown", "path trick", "empty", "a command"],
)
def test_a_path_that_names_no_topic_is_refused(client: PlainClient, descriptor: fl.FlightDescriptor, code: str) -> None:
    assert failure(client.flight.get_flight_info, descriptor)["code"] == code
