"""Which cloud objects may go and which can be relied on; the order in which they go."""

from types import SimpleNamespace

import pytest
from tests.unit.storage.shelf import MINUTE_US, STREAM_ID, TOPIC, Shelf

from icestream.cloud import ObjectSpan, UploadHead
from icestream.cloud.object import ObjectName, object_key, topic_key
from icestream.metadata.store import OutcomeUnknownError
from icestream.model.errors import StaleEpochError, UnavailableError
from icestream.storage.cloud import MetadataRegistry, TopicCloud
from icestream.storage.cloud.retention import confirmed_end, expired_below, remove_objects, remove_orphans

SPANS = tuple(
    ObjectSpan(first, first + 10, last_time_us=(first // 10 + 1) * MINUTE_US, size=1 << 20)
    for first in range(0, 50, 10)
)
NOW_US = 6 * MINUTE_US


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    for number in range(1, 6):
        shelf.add(number * 10, time_us=number * MINUTE_US)
    return shelf


# What may go


def test_objects_go_by_age_and_by_the_topics_size_oldest_first() -> None:
    def below(minutes: int | None, megabytes: int | None) -> int:
        return expired_below(SPANS, safe_end=None, minutes=minutes, megabytes=megabytes, now_us=NOW_US)

    assert below(None, None) == 0
    assert [below(minutes, None) for minutes in (10, 5, 4, 3, 1)] == [0, 0, 10, 20, 40]
    assert [below(None, megabytes) for megabytes in (5, 4, 2)] == [0, 10, 30]
    assert below(3, 4) == 20


def test_objects_of_a_table_topic_go_only_as_far_as_the_table_has_them_whole() -> None:
    found = [expired_below(SPANS, safe_end=end, minutes=1, megabytes=None, now_us=NOW_US) for end in (0, 9, 10, 29, 99)]
    assert found == [0, 0, 10, 20, 40]


def test_the_newest_object_always_stays() -> None:
    assert expired_below(SPANS, safe_end=None, minutes=None, megabytes=0, now_us=NOW_US) == 40
    assert expired_below(SPANS[-1:], safe_end=None, minutes=1, megabytes=0, now_us=1 << 62) == 40
    assert expired_below((), safe_end=None, minutes=1, megabytes=0, now_us=1 << 62) == 0


# What can be relied on


def test_an_object_is_asked_for_once_before_the_log_relies_on_it(shelf: Shelf) -> None:
    assert confirmed_end(shelf.cloud, 15) == 20
    assert [key for what, key in shelf.store.asked if what == "stat"] == sorted(shelf.store.contents)[:2]
    shelf.store.asked.clear()
    assert confirmed_end(shelf.cloud, 15) == 20
    assert not shelf.store.asked
    assert confirmed_end(shelf.cloud, 50) == 50
    assert [what for what, _ in shelf.store.asked] == ["stat", "read"] * 3


@pytest.mark.parametrize("damage", ["gone", "short", "other", "unknown", "a hole"])
def test_an_object_that_is_not_what_was_uploaded_is_not_relied_on(shelf: Shelf, damage: str) -> None:
    descriptor = shelf.registry.get(20)
    assert descriptor is not None
    sound = shelf.store.contents[descriptor.key]
    match damage:
        case "gone":
            del shelf.store.contents[descriptor.key]
        case "short":
            shelf.store.contents[descriptor.key] = sound[:-1]
        case "other":
            shelf.store.contents[descriptor.key] = bytes(len(sound))
        case "unknown" | "a hole":
            if damage == "unknown":
                _ = shelf.cloud.objects.spans  # the map has it still
            found = shelf.registry.owned
            assert found is not None
            shelf.registry.remove([descriptor], found)
    assert confirmed_end(shelf.cloud, 50) == 20
    if damage in ("gone", "short", "other"):
        shelf.store.contents[descriptor.key] = sound
        assert confirmed_end(shelf.cloud, 50) == 50


def test_a_store_that_is_away_lets_nothing_be_relied_on(shelf: Shelf) -> None:
    shelf.store.refuses.add("read")
    with pytest.raises(UnavailableError):
        confirmed_end(shelf.cloud, 50)
    assert shelf.cloud.confirmed_end == 0


def test_what_retention_took_in_the_cloud_needs_no_confirmation(shelf: Shelf) -> None:
    assert remove_objects(shelf.cloud, 30, NOW_US) == 3
    shelf.store.asked.clear()
    assert confirmed_end(shelf.cloud, 30) == 30
    assert not shelf.store.asked


# How objects go


def test_removed_objects_leave_record_map_and_store(shelf: Shelf) -> None:
    size = len(next(iter(shelf.store.contents.values())))
    assert remove_objects(shelf.cloud, 25, NOW_US) == 2
    assert shelf.ranges == [(20, 30), (30, 40), (40, 50)]
    assert [(span.first_offset, span.end_offset) for span in shelf.cloud.objects.spans] == shelf.ranges
    assert [one.first_offset for one in shelf.registry.objects()] == [20, 30, 40]
    head = shelf.head
    assert (head.first_offset, head.uploaded_end, head.object_count) == (20, 50, 3)
    assert head.object_bytes == sum(map(len, shelf.store.contents.values())) <= 3 * size + 10
    assert head.updated_us == NOW_US
    shelf.add(60)
    assert remove_objects(shelf.cloud, 60, NOW_US) == 3
    assert shelf.ranges == [(50, 60)]


def test_what_a_reader_holds_stays_until_its_time_is_up(shelf: Shelf) -> None:
    with shelf.cloud.leases.lock:
        lease = shelf.cloud.leases.take(20)
    assert remove_objects(shelf.cloud, 40, NOW_US) == 2
    assert shelf.ranges[0] == (20, 30)
    lease.offset = 31
    assert remove_objects(shelf.cloud, 40, NOW_US) == 1
    shelf.cloud.leases.release(lease)
    assert remove_objects(shelf.cloud, 40, NOW_US) == 1
    assert shelf.ranges == [(40, 50)]


def test_more_objects_than_a_transaction_takes_go_in_several(shelf: Shelf) -> None:
    for number in range(51, 180):
        shelf.add(number)
    assert remove_objects(shelf.cloud, 179, NOW_US) == 133
    assert shelf.ranges == [(178, 179)]
    assert shelf.head.object_count == 1


def test_an_owner_of_the_past_removes_nothing(shelf: Shelf) -> None:
    taken_over = MetadataRegistry(shelf.metadata, TOPIC, STREAM_ID)
    taken_over.claim(UploadHead(**(vars(shelf.head) | {"epoch": 2})))
    with pytest.raises(StaleEpochError):
        remove_objects(shelf.cloud, 30, NOW_US)
    assert len(shelf.ranges) == 5
    assert shelf.cloud.objects.first_offset == 0


def test_a_removal_whose_outcome_is_not_known_leaves_a_map_that_tells_the_truth(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise OutcomeUnknownError("no answer")

    monkeypatch.setattr(shelf.metadata, "transaction", lost)
    with pytest.raises(OutcomeUnknownError):
        remove_objects(shelf.cloud, 30, NOW_US)
    assert shelf.cloud.objects.first_offset == 0
    assert len(shelf.ranges) == 5
    monkeypatch.undo()
    assert remove_objects(shelf.cloud, 30, NOW_US) == 3


def test_what_a_removal_could_not_delete_is_found_and_deleted_later(shelf: Shelf) -> None:
    shelf.store.refuses.add("delete")
    with pytest.raises(UnavailableError):
        remove_objects(shelf.cloud, 30, NOW_US)
    assert shelf.cloud.objects.first_offset == 30
    assert len(shelf.ranges) == 5
    shelf.store.refuses.clear()
    assert remove_orphans(shelf.cloud) == 3
    assert shelf.ranges == [(30, 40), (40, 50)]
    assert remove_orphans(shelf.cloud) == 0


def test_what_has_no_sound_end_is_no_orphan(shelf: Shelf) -> None:
    """A recovery could not describe it, and so begins behind it."""
    damaged = object_key(TOPIC, STREAM_ID, ObjectName(0, 10, 1))
    content = shelf.store.contents[damaged]
    remove_objects(shelf.cloud, 10, NOW_US)
    for kept in (content[:-1] + b"?", content[:-70], b""):
        shelf.store.contents[damaged] = kept
        assert remove_orphans(shelf.cloud) == 0
    shelf.store.contents[damaged] = content
    assert remove_orphans(shelf.cloud) == 1


def test_objects_at_or_past_the_head_are_never_orphans(shelf: Shelf) -> None:
    remove_objects(shelf.cloud, 30, NOW_US)
    others = [
        object_key(TOPIC, STREAM_ID, ObjectName(50, 60, 1)),  # an upload on its way
        object_key(TOPIC, STREAM_ID, ObjectName(25, 31, 1)),
        object_key(TOPIC, "0" * 8, ObjectName(0, 10, 1)),
        topic_key(TOPIC, STREAM_ID),
        f"{TOPIC.namespace}/{TOPIC.name}/{STREAM_ID}/0.txt",
    ]
    for key in others:
        shelf.store.contents[key] = b"x"
    assert remove_orphans(shelf.cloud) == 0
    assert set(others) <= set(shelf.store.contents)


def test_nothing_is_looked_for_while_nothing_was_removed(shelf: Shelf) -> None:
    shelf.store.asked.clear()
    assert remove_orphans(shelf.cloud) == 0
    assert not shelf.store.asked


@pytest.mark.parametrize("doubt", ["made anew", "uploads fail"])
def test_nothing_is_an_orphan_while_the_record_may_be_wrong(
    shelf: Shelf, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = object_key(TOPIC, STREAM_ID, ObjectName(0, 10, 1))
    content = shelf.store.contents[first]
    remove_objects(shelf.cloud, 30, NOW_US)
    shelf.store.contents[first] = content
    if doubt == "made anew":
        shelf.cloud.has_rebuilt_records = True
    else:
        monkeypatch.setattr(TopicCloud, "status", SimpleNamespace(last_error="it was set back to an older state"))
    assert remove_orphans(shelf.cloud) == 0
    shelf.cloud.has_rebuilt_records = False
    monkeypatch.undo()
    assert remove_orphans(shelf.cloud) == 1
