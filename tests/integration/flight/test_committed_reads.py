"""Reading the table itself through the broker, whatever log and memory have."""

from tests.topics import Topics

from icestream.model.names import TopicName


def offsets(topics: Topics, topic: TopicName, **options: object) -> list[int]:
    with topics.client.consume(topic, 0, committed=True, **options) as consumer:  # type: ignore[arg-type]
        return [offset for batch in consumer.batches() for offset in batch.column(0).to_pylist()]


def test_only_what_is_committed_is_read_and_it_comes_from_the_table(topics: Topics) -> None:
    topic = topics.create("committed/rows")
    assert offsets(topics, topic) == []
    topics.publish(topic, [b"a%d" % number for number in range(10)])
    assert offsets(topics, topic) == []
    topics.drain(topic)
    topics.publish(topic, [b"b"] * 5)
    assert offsets(topics, topic) == list(range(10))
    assert offsets(topics, topic, where="payload = 'a3'") == [3]
    assert offsets(topics, topic, end=4, follow=True) == [0, 1, 2, 3]
