"""What is not there, and what must not be done to what is there."""

import pytest
from tests.integration.http.conftest import Running, error_of


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/api",
        "/api/v1",
        "/api/v1/topics/",
        "/api/v1/topics/a",
        "/api/v1/topics/a/b/",
        "/api/v1/topics/a/b/messages/",
        "/api/v1/topics/a%2Fb/c/d",
        "/HEALTHZ",
        "/%00",
        "/%ff%fe",
        "//",
    ],
)
def test_an_unknown_route_is_told_in_the_shape_of_all_errors(lasting_http: Running, path: str) -> None:
    error_of(lasting_http.client.get(f"{lasting_http.door.address}{path}"), 404, "no_such_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("PUT", "/api/v1/topics", {"GET", "HEAD", "POST"}),
        ("OPTIONS", "/api/v1/topics/a/b", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("DELETE", "/api/v1/topics/a/b/messages", {"GET", "HEAD", "POST"}),
        ("BREW", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_told_with_the_right_ones(
    lasting_http: Running, method: str, path: str, allowed: set[str]
) -> None:
    answer = lasting_http.client.request(method, path)
    error_of(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("name", ["a/.b", "a/..%2e", "a%20b/c", "a/%00", f"a/{'x' * 101}", "%C3%BC/b"])
def test_an_illegal_name_in_the_path_is_refused(lasting_http: Running, name: str) -> None:
    for path in (f"/api/v1/topics/{name}", f"/api/v1/topics/{name}/messages"):
        error_of(lasting_http.client.get(path), 400, "invalid_name")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/topics"),
        ("GET", "/api/v1/topics/a/b"),
        ("DELETE", "/api/v1/topics/a/b"),
        ("GET", "/api/v1/stats"),
        ("GET", "/api/v1/doors"),
    ],
)
def test_an_unknown_parameter_is_refused_and_named(lasting_http: Running, method: str, path: str) -> None:
    lasting_http.storage.topics.create("a/b", if_not_exists=True)
    error = error_of(lasting_http.client.request(method, path, params={"colour": "red"}), 400, "invalid_request")
    assert "colour" in error["message"]


def test_the_root_leads_to_the_documentation(http: Running) -> None:
    answer = http.client.get("/", follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, "/api/docs")


def test_answers_are_neither_kept_nor_guessed_at(http: Running) -> None:
    for path in ("/api/v1/topics", "/nowhere", "/metrics"):
        headers = http.client.get(path).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
        assert "server" not in headers
