import pytest

from icestream.cli.output import duration_text, offsets_text, plural, rate_text, rfc3339, size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (10**8, "95.4 MiB"), (2**60, "1048576 TiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00068, "0.68 ms"), (0.5, "500 ms"), (1.2, "1.20 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "seconds", "text"), [(0, 1, "0/s"), (5, 2, "2.5/s"), (1_000_000, 0.5, "2,000,000/s"), (1, 0, "-")]
)
def test_rates(number: float, seconds: float, text: str) -> None:
    assert rate_text(number, seconds) == text


def test_offsets_are_said_with_their_last_one_and_the_next() -> None:
    assert offsets_text(0, 100) == "offsets 0 to 99, next 100"
    assert offsets_text(7, 8) == "offsets 7 to 7, next 8"
    assert offsets_text(5, 5) == "no offsets, next 5"


def test_plurals_and_times() -> None:
    assert (plural(1, "message"), plural(2000, "message")) == ("1 message", "2,000 messages")
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"
    assert rfc3339(1_769_860_800_000_001) == "2026-01-31T12:00:00.000001Z"
