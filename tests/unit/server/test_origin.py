"""Which callers may open streams."""

import pytest
from starlette.requests import HTTPConnection

from icestream.server.http.streams import OriginRefusedError, check_origin

ALLOWED = frozenset({"https://shop.example", "null"})


def caller(**headers: str) -> HTTPConnection:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": [(b"host", b"broker.example:8816"), *pairs]})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec_fetch_site": "none"},
        {"sec_fetch_site": "same-origin"},
        {"origin": "http://broker.example:8816"},
    ],
)
def test_programs_and_the_doors_own_pages_are_served(headers: dict[str, str]) -> None:
    assert check_origin(caller(**headers), ALLOWED, operation="events") == {}


@pytest.mark.parametrize("origin", sorted(ALLOWED))
def test_an_allowed_page_may_read_the_answer(origin: str) -> None:
    answered = check_origin(caller(origin=origin), ALLOWED, operation="events")
    assert answered == {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://shop.example.evil.example"},
        {"origin": "http://broker.example"},
        {"origin": ""},
        {"origin": "https://evil.example", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_other_pages_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(OriginRefusedError, match="may not open streams"):
        check_origin(caller(**headers), ALLOWED, operation="events")
