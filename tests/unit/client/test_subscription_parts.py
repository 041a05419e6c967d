"""Parts of a subscription: what it sends in one message, and what threads that share it get."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.unit.client.fake_subscriptions import DELIVERY_SCHEMA

from icestream.client import subscription as module
from icestream.client.subscription import CollectedAcks, Subscription
from icestream.model.messages import Message, messages_of


def test_acknowledgements_and_nacks_are_cut_into_messages_that_the_broker_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_RANGES", 2)
    ranges = [(number, number + 1) for number in range(0, 10, 2)]
    sent = CollectedAcks(ranges, None, [(None, ranges), (50, ranges[:3])]).messages()
    assert [message["ack"] for message in sent if "ack" in message] == [ranges[:2], ranges[2:4], ranges[4:]]
    assert [(message["nack"], message.get("delay_ms")) for message in sent if "nack" in message] == [
        (ranges[:2], None),
        (ranges[2:4], None),
        (ranges[4:], None),
        (ranges[:2], 50),
        (ranges[2:3], 50),
    ]


def delivered(count: int) -> pa.RecordBatch:
    row = {"publish_time": 0, "producer": "p", "sequence": 0, "payload": b"x", "redelivery_count": 0}
    return pa.RecordBatch.from_pylist([row | {"offset": 7 + number} for number in range(count)], DELIVERY_SCHEMA)


@pytest.mark.parametrize(("taken_before", "taken_meanwhile"), [(2, []), (2, [10]), (0, [7, 9]), (3, [10, 11]), (5, [])])
def test_the_rest_of_a_batch_is_what_no_other_thread_has_taken(taken_before: int, taken_meanwhile: list[int]) -> None:
    batch = delivered(5)
    rows = messages_of(batch)
    for _ in range(taken_before):
        next(rows)

    def shared() -> Iterator[Message]:
        """The rows, of which another thread takes some while they are iterated over."""
        return (message for message in rows if message.offset not in taken_meanwhile)

    subscription = Subscription.__new__(Subscription)
    subscription._batch, subscription._rows = batch, shared()
    rest = subscription._rest()
    found = [] if rest is None else rest.column("offset").to_pylist()
    assert found == [offset for offset in range(7 + taken_before, 12) if offset not in taken_meanwhile]
