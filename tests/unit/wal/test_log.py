import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.wal.conftest import STREAM, batch, bodies

from icestream.model.enums import SyncMode
from icestream.model.errors import ClosedError, LogUnavailableError, SequenceError, UnavailableError
from icestream.wal import LocalFiles, Log, LogContext, LogReader, LogState, offset_at_time
from icestream.wal.files import LocalFile
from icestream.wal.records import load_checkpoint
from icestream.wal.segment import INDEX_SUFFIX, PRODUCERS_SUFFIX, segment_path

OpenLog = Callable[..., Log]


def test_offsets_count_messages_from_zero_without_a_gap(open_log: OpenLog) -> None:
    log = open_log()
    assert [log.append(batch("x", count=count)).base_offset for count in (3, 1, 5)] == [0, 3, 4]
    assert log.durable_end == 9


def test_everything_is_there_after_a_clean_restart(open_log: OpenLog) -> None:
    log = open_log()
    for text in ("a", "b", "c"):
        log.append(batch(text))
    log.close()
    log = open_log()
    assert bodies(log) == ["a", "b", "c"]
    assert log.append(batch("d")).base_offset == 3


def test_everything_is_there_after_the_process_vanished(open_log: OpenLog) -> None:
    log = open_log()
    for text in ("a", "b", "c"):
        log.append(batch(text))
    again = open_log()  # the first one was never closed
    assert bodies(again) == ["a", "b", "c"]


def test_segments_turn_over_by_size_and_are_read_as_one(open_log: OpenLog, directory: Path) -> None:
    log = open_log(max_file_bytes=4096)
    texts = [f"{number:03d}" + "x" * 500 for number in range(50)]
    for text in texts:
        log.append(batch(text))
    assert len(log.snapshot.sealed) > 5
    assert all(segment.footer.position <= 4096 for segment in log.snapshot.sealed)
    assert bodies(log) == texts
    log.close()
    assert bodies(open_log(max_file_bytes=4096)) == texts
    assert bodies(open_log(max_file_bytes=4096), 17) == texts[17:]
    assert segment_path(directory, 0).exists()


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(open_log: OpenLog) -> None:
    log = open_log(max_file_bytes=4096)
    texts = ["small", "x" * 20_000, "small again"]
    for text in texts:
        log.append(batch(text))
    log.close()
    assert bodies(open_log(max_file_bytes=4096)) == texts


def test_segments_turn_over_by_age(open_log: OpenLog) -> None:
    log = open_log(max_age_us=1)
    log.append(batch("a"))
    log.rotate_if_old()
    assert len(log.snapshot.sealed) == 1


def test_a_repeated_batch_keeps_its_offset_and_is_stored_once(open_log: OpenLog) -> None:
    log = open_log()
    first = log.append(batch("a", count=2, producer="p", sequence=0))
    again = log.append(batch("a", count=2, producer="p", sequence=0))
    assert (again.base_offset, again.duplicate, first.duplicate) == (0, True, False)
    assert again.publish_time_us == first.publish_time_us
    assert log.durable_end == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_repeated_batch_is_recognised_after_a_restart(open_log: OpenLog, clean: bool) -> None:
    log = open_log(max_file_bytes=4096)
    for number in range(40):
        log.append(batch("x" * 300, producer="p", sequence=number))
    if clean:
        log.close()
    log = open_log(max_file_bytes=4096)
    assert log.next_sequence("p") == 40
    assert log.append(batch("x" * 300, producer="p", sequence=39)).duplicate
    assert log.append(batch("x" * 300, producer="p", sequence=30)).base_offset == 30


def test_producers_are_recognised_when_their_saved_state_is_lost(open_log: OpenLog, directory: Path) -> None:
    log = open_log(max_file_bytes=4096)
    for number in range(40):
        log.append(batch("x" * 300, producer="p", sequence=number))
    log.close()
    for path in directory.glob(f"*{PRODUCERS_SUFFIX}"):
        path.write_bytes(b"damaged")
    assert open_log(max_file_bytes=4096).append(batch("x" * 300, producer="p", sequence=39)).duplicate


def test_a_hole_in_a_producers_sequence_is_refused(open_log: OpenLog) -> None:
    log = open_log()
    log.append(batch("a", producer="p", sequence=0))
    with pytest.raises(SequenceError, match="expected is 1"):
        log.append(batch("c", producer="p", sequence=2))
    assert log.append(batch("b", producer="p", sequence=1)).base_offset == 1


def test_the_number_of_remembered_producers_is_bounded(open_log: OpenLog) -> None:
    log = open_log(max_producers=3)
    for number in range(10):
        log.append(batch("a", producer=f"p{number}", sequence=0))
    assert len(log._producers) == 3
    assert log.next_sequence("p9") == 1
    assert log.next_sequence("p0") == 0


def test_many_threads_share_syncs_and_every_batch_gets_its_place(open_log: OpenLog) -> None:
    log = open_log()
    offsets: list[int] = []

    def work(name: str) -> None:
        offsets.extend(
            log.append(batch(f"{name}-{number}", producer=name, sequence=number)).base_offset for number in range(50)
        )

    threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(400))
    found = bodies(log)
    assert len(found) == 400
    for number in range(8):
        assert [text for text in found if text.startswith(f"p{number}-")] == [f"p{number}-{n}" for n in range(50)]


def test_publish_times_never_go_back_when_the_clock_does(open_log: OpenLog) -> None:
    log = open_log()
    times = iter([100, 50, 200, 300, 300, 300, 300])
    object.__setattr__(log.context, "clock", lambda: next(times))
    found = [log.append(batch("x")).publish_time_us for _ in range(2)]
    assert found[1] >= found[0]


def test_a_closed_log_refuses_appends_and_wakes_its_readers(open_log: OpenLog) -> None:
    log = open_log()
    reader = LogReader(log, 0)
    failed: list[Exception] = []

    def wait() -> None:
        try:
            reader.wait()
        except ClosedError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    log.close()
    thread.join()
    assert failed
    assert log.state is LogState.CLOSED
    with pytest.raises(ClosedError):
        log.append(batch("x"))
    log.close()


def test_a_reader_at_the_end_is_woken_by_the_next_append(open_log: OpenLog) -> None:
    log = open_log()
    reader = LogReader(log, 0)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(reader.wait()))
    thread.start()
    log.append(batch("x"))
    thread.join()
    assert woken == [True]
    assert [bytes(frame.body) for frame in reader.read()] == [b"x"]


def test_an_offset_is_found_by_publish_time(open_log: OpenLog) -> None:
    log = open_log(max_file_bytes=4096, index_interval_bytes=512)
    times = [log.append(batch(f"{number}" + "x" * 200)).publish_time_us for number in range(60)]
    log.close()
    log = open_log(max_file_bytes=4096)
    for number in (0, 1, 17, 42, 59):
        assert offset_at_time(log, times[number]) == times.index(times[number])
        assert offset_at_time(log, times[number] + 1) >= number + 1
    assert offset_at_time(log, times[-1] + 1) == 60
    assert offset_at_time(log, 0) == 0


@pytest.mark.parametrize("harm", ["missing", "damaged", "truncated"])
def test_a_lost_index_is_made_anew(open_log: OpenLog, directory: Path, harm: str) -> None:
    log = open_log(max_file_bytes=4096)
    for number in range(40):
        log.append(batch(f"{number}" + "x" * 200))
    log.close()
    path = segment_path(directory, 0, INDEX_SUFFIX)
    original = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(original[:-20] if harm == "truncated" else b"x" + original[1:])
    assert len(bodies(open_log(max_file_bytes=4096), 3)) == 37
    assert path.read_bytes() == original


def test_pruning_drops_whole_segments_and_is_remembered(open_log: OpenLog) -> None:
    log = open_log(max_file_bytes=4096)
    for number in range(50):
        log.append(batch(f"{number:03d}" + "x" * 300))
    boundary = log.snapshot.sealed[2].footer.end_offset
    assert log.prune(boundary + 1) == 3
    assert log.start_offset == boundary
    log.close()
    log = open_log(max_file_bytes=4096)
    assert log.start_offset == boundary
    log.cache.clear()
    assert bodies(log, boundary)[0].startswith(f"{boundary:03d}")


def test_sync_mode_interval_shows_messages_before_the_sync_and_syncs_on_request(open_log: OpenLog) -> None:
    log = open_log(sync_mode=SyncMode.INTERVAL)
    log.append(batch("a"))
    assert log.durable_end == 1
    assert log._segments.writer.synced_offset == 0
    log.sync()
    assert log._segments.writer.synced_offset == 1


def test_no_message_gets_an_offset_past_the_limit(open_log: OpenLog) -> None:
    log = open_log()
    log.offset_limit = 3
    log.append(batch("a", count=2, producer="p"))
    with pytest.raises(UnavailableError, match="offsets from 3 on are not reserved") as raised:
        log.append(batch("b", count=2, producer="p", sequence=2))
    assert raised.value.retryable
    assert log.append(batch("a", count=2, producer="p")).duplicate, "a repetition needs no new offset"
    log.append(batch("c", count=1))
    log.offset_limit = 100
    assert log.append(batch("b", count=2, producer="p", sequence=2)).base_offset == 3


def test_closed_offsets_are_those_behind_all_that_was_accepted(open_log: OpenLog) -> None:
    log = open_log()
    log.append(batch("a", count=4))
    assert log.close_offsets() == 4
    with pytest.raises(UnavailableError):
        log.append(batch("b"))
    assert log.durable_end == 4


def test_listeners_hear_of_a_segment_that_was_sealed_by_its_age(open_log: OpenLog) -> None:
    log = open_log(max_age_us=1)
    log.append(batch("a"))
    heard: list[int] = []
    log.listeners.add(lambda: heard.append(len(log.snapshot.sealed)))
    log.rotate_if_old()
    assert heard == [1]


def test_a_batch_that_meets_a_log_while_it_is_reopened_may_be_sent_again(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    seen = iter([LogState.OPEN, LogState.FAILED])  # failed when the batch comes, and reopened right afterwards
    monkeypatch.setattr(Log, "state", property(lambda _: next(seen, LogState.OPEN), lambda *_: None), raising=False)
    with pytest.raises(LogUnavailableError, match="being reopened") as raised:
        log.append(batch("x"))
    assert raised.value.retryable
    assert log.append(batch("x")).base_offset == 0


@pytest.mark.parametrize("state", ["new", "torn", "sealed"])
def test_a_log_that_cannot_be_opened_leaves_no_file_open(
    open_log: OpenLog, directory: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    datasync = LocalFile.datasync

    def fail(file: LocalFile) -> None:
        if file.path.suffix == ".log":
            raise OSError(errno.EIO, "Input/output error")
        datasync(file)

    log = open_log()
    if state != "new":
        log.append(batch("one"))
    log.close()
    active = segment_path(directory, 0)
    if state == "new":
        active.unlink()
        (directory / "checkpoint.json").unlink()
    elif state == "torn":
        active.write_bytes(active.read_bytes() + b"torn")
    else:
        log = open_log()
        log.rotate_past(1)
        log.close()
        segment_path(directory, 1).unlink()
        checkpoint = load_checkpoint(LocalFiles(), directory)
        replace(checkpoint, segment_number=0, base_offset=0).save(LocalFiles(), directory)
    files = LocalFiles()
    with monkeypatch.context() as patched:
        patched.setattr(LocalFile, "datasync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            Log.create(LogContext(files), directory, STREAM)
    assert files.open_count == 0
