from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.errors import InvalidNameError
from icestream.model.names import TopicName, check_producer, url_host
from icestream.telemetry.tenants import check_tenant


@pytest.mark.parametrize(("text", "expected"), [("default/events", ("default", "events")), ("x", ("default", "x"))])
def test_a_name_is_namespace_and_name_or_a_name_in_the_default_namespace(text: str, expected: tuple[str, str]) -> None:
    assert TopicName.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a/b/c", ".", "..", "../x", "a/..", "a/.hidden", "a b", "a\n", "ä", "a/" + "x" * 101, "a\0b"],
)
def test_names_that_could_play_tricks_are_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        TopicName.parse(text)


@pytest.mark.parametrize("text", ["-a", "a/*", "a%2fb", "a\\b", "~", "a:b", "\u202ea"])
def test_names_that_mean_something_to_shells_and_urls_are_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        TopicName.parse(text)


@pytest.mark.parametrize("check", [TopicName.parse, check_tenant])
def test_the_advice_for_a_bad_name_is_good_for_tenants_too(check: Callable[[str], object]) -> None:
    with pytest.raises(InvalidNameError, match=r"begin with a letter or a digit$"):
        check("-a")
    assert check_tenant("0a") == "0a"
    assert check_tenant("a_") == "a_"


@given(st.text(max_size=30))
def test_whatever_is_accepted_is_safe_as_a_path(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidNameError:
        return
    for part in name:
        assert part.isascii()
        assert part not in {"", ".", ".."}
        assert not set(part) & set("/\\\0\n ")
    assert TopicName.parse(str(name)) == name


@given(st.text(max_size=250))
def test_a_producers_name_is_printable_and_fits_the_frame(text: str) -> None:
    try:
        assert check_producer(text) == text
    except InvalidNameError:
        return
    assert 1 <= len(text.encode()) <= 200


@pytest.mark.parametrize(
    ("host", "expected"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("a.example", "a.example")]
)
def test_an_ipv6_address_stands_in_brackets_in_a_url(host: str, expected: str) -> None:
    assert url_host(host) == expected
