"""SQL names one's own topics alone, through both doors; what names another's does not begin."""

import pytest
from tests.integration.auth.conftest import ACME, ROOT, Guarded

from icestream.model.errors import IcestreamError, PermissionDeniedError

REFUSED = [
    "SELECT * FROM globex.events",
    "SELECT * FROM globex.nowhere",
    'SELECT * FROM "globex"."events"',
    "SELECT * FROM Globex.Events",
    "SELECT * FROM ACME.events",
    "SELECT * FROM events",
    "SELECT * FROM default.events",
    "SELECT * FROM acme.events, globex.events",
    "SELECT * FROM acme.nowhere, globex.events",
    "SELECT * FROM acme.events JOIN globex.events USING (offset)",
    "SELECT (SELECT max(offset) FROM globex.events) FROM acme.events",
    "SELECT * FROM acme.events WHERE offset IN (SELECT offset FROM globex.events)",
    "SELECT count(*) FROM acme.events UNION ALL SELECT count(*) FROM globex.events",
    "WITH mine AS (SELECT * FROM globex.events) SELECT * FROM mine",
    "WITH events AS (SELECT 1) SELECT * FROM globex.events",
    "EXPLAIN SELECT * FROM globex.events",
    "DESCRIBE SELECT * FROM globex.events",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_what_names_anothers_topic_is_refused(guarded: Guarded, sql: str) -> None:
    with pytest.raises(PermissionDeniedError):
        guarded.acme.sql(sql)
    with guarded.http(ACME) as http:
        answer = http.post("/api/v1/sql", json={"sql": sql})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")


def test_it_is_refused_in_the_same_words_whether_it_is_there_or_not(guarded: Guarded) -> None:
    said = []
    for name in ("events", "nowhere"):
        with pytest.raises(IcestreamError) as caught:
            guarded.acme.sql(f"SELECT * FROM globex.{name}")
        said.append(caught.value.to_dict())
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("SELECT count(*) AS n FROM acme.events", 3),
        ("WITH events AS (SELECT 7 AS n) SELECT n FROM events", 7),
        ("WITH mine AS (SELECT * FROM acme.events) SELECT count(*) AS n FROM mine", 3),
        ("SELECT 5 AS n", 5),
    ],
)
def test_ones_own_is_answered(guarded: Guarded, sql: str, value: int) -> None:
    assert guarded.acme.sql(sql)["n"].to_pylist() == [value]
    with guarded.http(ACME) as http:
        assert http.post("/api/v1/sql", json={"sql": sql}).json()["rows"] == [{"n": value}]


def test_a_name_that_a_with_clause_defines_elsewhere_is_no_way_in(guarded: Guarded) -> None:
    """The name is perhaps the clause's and perhaps a topic's; a topic that may not be touched is not there then."""
    sql = "SELECT * FROM (WITH events AS (SELECT 1 AS n) SELECT * FROM events) AS a, events AS b"
    with pytest.raises(IcestreamError, match="events"):
        guarded.acme.sql(sql)


def test_all_topics_are_there_for_who_may_do_everything(guarded: Guarded) -> None:
    sql = "SELECT count(*) AS n FROM acme.events JOIN globex.events USING (offset)"
    assert guarded.root.sql(sql)["n"].to_pylist() == [3]
    with guarded.http(ROOT) as http:
        assert http.post("/api/v1/sql", json={"sql": sql}).json()["rows"] == [{"n": 3}]
