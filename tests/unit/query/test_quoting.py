import pytest

from icestream.query.statement import quote_names


@pytest.mark.parametrize(
    ("written", "run"),
    [
        ("SELECT count(*) FROM default.events", 'SELECT count(*) FROM "default".events'),
        ("SELECT DEFAULT.events.key FROM Default . events", 'SELECT "default".events.key FROM "default" . events'),
        ("select max(offset), offset+1 from t", 'select max("offset"), "offset"+1 from t'),
        ("select offset from t", 'select "offset" from t'),
        ("select e.offset from t e where offset > 5", 'select e."offset" from t e where "offset" > 5'),
        ("select offset::text, offset as o from t", 'select "offset"::text, "offset" as o from t'),
        ("select * from t order by offset", 'select * from t order by "offset"'),
        ("select * from t order by offset desc limit 3", 'select * from t order by "offset" desc limit 3'),
        ("select case when offset in (1) then offset end", 'select case when "offset" in (1) then "offset" end'),
        ("select 'ö', offset from t", "select 'ö', \"offset\" from t"),
    ],
)
def test_names_that_sql_keeps_for_itself_are_put_in_quotes(written: str, run: str) -> None:
    assert quote_names(written) == run


@pytest.mark.parametrize(
    "sql",
    [
        "select * from t limit 3 offset 2",
        "select * from t limit 3 OFFSET (select 2)",
        "select 'default.events', 'offset', \"offset\", \"default\".events from t",
        "select 1 -- default.events, offset",
        "select 1 /* offset, */ + 2",
        "",
        "selct ' unfinished",
    ],
)
def test_everything_else_stays_as_it_is(sql: str) -> None:
    assert quote_names(sql) == sql
