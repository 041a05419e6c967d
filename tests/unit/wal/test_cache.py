from icestream.model.messages import Frame
from icestream.wal import FrameCache


def frame(offset: int, nbytes: int = 100, count: int = 1) -> Frame:
    return Frame(offset, count, 0, 1, "", 0, 1, 0, b"x" * nbytes)


def test_reads_begin_with_the_frame_that_holds_the_offset() -> None:
    log = FrameCache(1 << 20, 1000).log_cache()
    log.add([frame(0, count=10), frame(10, count=10), frame(20, count=10)])
    assert [found.base_offset for found in log.read(15, 1 << 20)] == [10, 20]
    assert log.read(30, 1 << 20) == []


def test_a_read_is_bounded_by_bytes_but_never_empty() -> None:
    log = FrameCache(1 << 20, 1000).log_cache()
    log.add([frame(number) for number in range(10)])
    assert len(log.read(0, 1)) == 1
    assert len(log.read(0, 350)) == 3


def test_bytes_are_bounded_over_all_logs_and_the_oldest_frames_go_first() -> None:
    cache = FrameCache(10_000, 1_000_000)
    one, two = cache.log_cache(), cache.log_cache()
    for number in range(200):
        (one if number % 2 else two).add([frame(number // 2, 500)])
        assert cache.nbytes <= 10_000
    assert one.read(0, 1) == []
    assert one.read(99, 1)[0].base_offset == 99
    assert abs(len(one) - len(two)) <= 1


def test_messages_are_bounded_per_log_without_leaving_turns_behind() -> None:
    cache = FrameCache(1 << 30, 10)
    log = cache.log_cache()
    for number in range(10_000):
        log.add([frame(number)])
        assert log.messages <= 10
    assert len(cache._arrivals) <= 25
    assert [found.base_offset for found in log.read(9_990, 1 << 20)] == list(range(9_990, 10_000))


def test_a_dropped_frame_is_not_held_in_memory() -> None:
    cache = FrameCache(1 << 30, 5)
    log = cache.log_cache()
    for number in range(100):
        log.add([frame(number)])
    assert sum(held.nbytes for held in log._frames) == 5 * 100


def test_clearing_one_log_leaves_the_others() -> None:
    cache = FrameCache(1 << 20, 1000)
    one, two = cache.log_cache(), cache.log_cache()
    one.add([frame(0)])
    two.add([frame(0)])
    one.clear()
    assert one.read(0, 1) == []
    assert two.read(0, 1) != []
